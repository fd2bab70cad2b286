"""The result files, and the tables and figures that pages make of them."""

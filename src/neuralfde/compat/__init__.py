"""Other packages' calls, answered by this one."""

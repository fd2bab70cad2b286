// Typeset what pymdownx.arithmatex marks; again after every instant navigation.
function typeset() {
  if (typeof renderMathInElement !== "function") return;
  renderMathInElement(document.body, {
    delimiters: [
      { left: "\\[", right: "\\]", display: true },
      { left: "\\(", right: "\\)", display: false },
    ],
    throwOnError: false,
  });
}
if (typeof document$ !== "undefined") document$.subscribe(typeset);
else document.addEventListener("DOMContentLoaded", typeset);

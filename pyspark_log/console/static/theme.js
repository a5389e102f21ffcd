// The colours that were chosen, before anything is drawn.
"use strict";
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("pylog-theme"); } catch { /* no storage: the system's colours */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();

// Choose light or dark before anything is painted: what the reader chose, else what the system says.
"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = "auto";
  try {
    chosen = localStorage.getItem("trackside-theme") || "auto";
  } catch {
    // A page opened from disk may have no storage.
  }
  const apply = () => {
    document.documentElement.dataset.theme = chosen === "auto" ? (dark.matches ? "dark" : "light") : chosen;
    document.dispatchEvent(new Event("themechange"));
  };
  dark.addEventListener("change", apply);
  window.theme = {
    get chosen() {
      return chosen;
    },
    next() {
      const order = dark.matches ? ["auto", "light", "dark"] : ["auto", "dark", "light"];
      chosen = order[(order.indexOf(chosen) + 1) % 3];
      try {
        localStorage.setItem("trackside-theme", chosen);
      } catch {
        // Then it holds until the page is closed.
      }
      apply();
    },
  };
  apply();
})();

// Before the first paint: the theme that was chosen, if one was. A plain script, so that it runs first.
(function () {
  const chosen = localStorage.getItem("groupwise.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();

"use strict";
// Shows blurred pictures on request, opens the gallery that a link leads to, copies commands, and marks the reader's section
// in the menu.
(() => {
  document.documentElement.dataset.scripts = "on";
  for (const button of document.querySelectorAll(".reveal")) {
    button.addEventListener("click", () => {
      const isShown = button.parentElement.classList.toggle("shown");
      button.setAttribute("aria-pressed", String(isShown));
      button.textContent = isShown ? "Blur again" : "Show (NSFW score)";
    });
  }
  const blur = document.getElementById("blur-all");
  blur?.addEventListener("click", () => blur.setAttribute("aria-pressed", String(document.getElementById("galleries").classList.toggle("blurred"))));

  document.getElementById("no-scripts").remove();

  const opened = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (!(target instanceof HTMLDetailsElement)) return;
    if (target.hidden) FIND.showAll();
    target.open = true;
    target.scrollIntoView();
  };
  FIND.start();
  addEventListener("hashchange", opened);
  opened();

  // Where the browser forbids the clipboard, the command is selected, so that a key copies it.
  document.addEventListener("click", async ({ target }) => {
    if (!(target instanceof HTMLButtonElement && target.classList.contains("copy"))) return;
    const command = target.previousElementSibling;
    const copied = await navigator.clipboard?.writeText(command.textContent).then(() => true, () => false);
    if (!copied) getSelection().selectAllChildren(command);
    target.textContent = copied ? "Copied" : "Selected: press Ctrl+C";
  });

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const here = () => {
    let current = null;
    for (const section of document.querySelectorAll("main > section")) if (section.getBoundingClientRect().top < innerHeight / 3) current = section.id;
    for (const [id, link] of links) id === current ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
  };
  addEventListener("scroll", here, { passive: true });
  here();
  CHARTS.start();
  WHAT_IF.start();
})();

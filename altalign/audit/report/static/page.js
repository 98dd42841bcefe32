"use strict";
// Blurs all pictures, opens the gallery that a link leads to, and marks the reader's section in the menu.
(() => {
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

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const here = () => {
    let current = null;
    for (const section of document.querySelectorAll("main > section")) if (section.getBoundingClientRect().top < innerHeight / 3) current = section.id;
    for (const [id, link] of links) id === current ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
  };
  addEventListener("scroll", here, { passive: true });
  here();
  CHARTS.start();
})();

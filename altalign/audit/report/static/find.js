"use strict";
// Filters the samples on the page by text, reason and source.
const FIND = (() => {
  const byId = (id) => document.getElementById(id);
  const folded = (text) => text.normalize("NFKC").toLowerCase();
  const whole = new Intl.NumberFormat("en");
  const texts = new WeakMap();
  const OF_A_WORD = /[\p{sc=Latn}\p{sc=Grek}\p{sc=Cyrl}\p{N}]/u;

  // Whether a text has this word or one that begins with it: "red" is not in "scattered". Other scripts may not part words.
  function has(text, word) {
    for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + 1)) if (!at || !OF_A_WORD.test(text[at - 1])) return true;
    return false;
  }

  // A card's caption and details and the key in its command, without the words of its buttons and the run's folder.
  function textOf(card) {
    const said = (each) => (each.matches("code") ? each.textContent.split(/ --(?:key|url) /).pop() : each.textContent);
    if (!texts.has(card)) texts.set(card, folded([...card.querySelectorAll(".caption, dd, .command code")].map(said).join(" ")));
    return texts.get(card);
  }

  function show(galleries, wasOpen) {
    const words = folded(byId("find-text").value).split(/\s+/).filter(Boolean);
    const [reason, source] = [byId("find-reason").value, byId("find-source")?.value ?? ""];
    const isAsked = Boolean(words.length || reason || source);
    let [shown, all] = [0, 0];
    for (const gallery of galleries) {
      if (!wasOpen.has(gallery)) wasOpen.set(gallery, gallery.open);
      let here = 0;
      for (const card of gallery.querySelectorAll(".card")) {
        const fits = (!reason || gallery.id === reason) && (!source || card.dataset.source === source) && words.every((word) => has(textOf(card), word));
        card.hidden = !fits;
        here += fits;
        all += 1;
      }
      shown += here;
      gallery.hidden = !here;
      gallery.open = isAsked ? here > 0 : wasOpen.get(gallery);
    }
    if (!isAsked) wasOpen.clear();
    byId("find-found").textContent = isAsked ? `${whole.format(shown)} of the ${whole.format(all)} samples on this page` : `Looks at the ${whole.format(all)} samples on this page. altalign explain RUN --text TEXT looks at the whole run.`;
  }

  let update = () => {};
  function showAll() {
    byId("find").reset();
    update();
  }

  function start() {
    if (!byId("find")) return;
    const galleries = [...document.querySelectorAll("details.samples")];
    const wasOpen = new Map();
    update = () => show(galleries, wasOpen);
    byId("find").addEventListener("input", update);
    byId("find").addEventListener("submit", (event) => event.preventDefault());
    byId("find-all").addEventListener("click", showAll);
    showAll();
  }
  return { start, showAll };
})();

"use strict";
// What a selection would keep with other thresholds. audit/report/moved.py does the same arithmetic and explains cells.
const MOVED = (() => {
  const byId = (id) => document.getElementById(id);

  // What a command of these thresholds says: a share that is moved becomes a condition.
  function command(found, at) {
    const where = [];
    const tops = [];
    for (const [said, isTop, key, moved] of found.asked) {
      const slider = found.sliders.find((each) => each.key === key);
      if (slider && at[key] !== slider.at) where.push(moved + slider.stops[at[key]]);
      else if (isTop) tops.push(` --top '${said}'`);
      else where.push(said.includes(" OR ") ? `(${said})` : said);
    }
    const quoted = where.join(" AND ").replace(/["$`\\]/g, "\\$&");
    return ["altalign select RUN OUT", where.length ? ` --where "${quoted}"` : "", ...tops].join("");
  }

  function show(found, at) {
    const [kept] = WHAT_IF.sums(found.cells, found.sliders, at, () => 0, 1);
    byId("moved-kept").textContent = new Intl.NumberFormat("en").format(kept);
    byId("moved-change").textContent = WHAT_IF.change(kept, found.kept);
    for (const slider of found.sliders) {
      byId(`at-${slider.key}`).textContent = slider.labels[at[slider.key]];
      byId(`slide-${slider.key}`).setAttribute("aria-valuetext", slider.labels[at[slider.key]]);
    }
    const isMoved = found.sliders.some((slider) => at[slider.key] !== slider.at);
    byId("moved-command").textContent = isMoved ? command(found, at) : "Move a slider to get a command";
  }

  async function start() {
    const form = byId("moved-form");
    if (!form || !DATA.moved || typeof DecompressionStream === "undefined") return;
    const found = { ...DATA.moved, cells: await WHAT_IF.unpacked(DATA.moved.cells) };
    const at = {};
    const reset = () => {
      for (const slider of found.sliders) byId(`slide-${slider.key}`).value = at[slider.key] = slider.at;
      show(found, at);
    };
    for (const slider of found.sliders) {
      byId(`slide-${slider.key}`).addEventListener("input", (event) => {
        at[slider.key] = Number(event.target.value);
        show(found, at);
      });
    }
    byId("moved-reset").addEventListener("click", reset);
    reset();
    form.hidden = false;
    byId("moved-off").hidden = true;
    document.documentElement.dataset.moved = "ready";
  }
  return { start };
})();

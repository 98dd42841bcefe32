"use strict";
// Sums of the run's joint counts under other thresholds. audit/report/what_if.py does the same arithmetic and explains cells.
const WHAT_IF = (() => {
  const [KEPT, NOT_SEARCHED] = [0, 2];
  const whole = new Intl.NumberFormat("en");
  const byId = (id) => document.getElementById(id);

  async function unpacked(cells) {
    const bytes = Uint8Array.from(atob(cells.data), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const buffer = await new Response(stream).arrayBuffer();
    const width = cells.wide ? 8 : 4;
    const columns = {};
    cells.columns.forEach((name, i) => { columns[name] = new Uint8Array(buffer, width * cells.n + i * cells.n, cells.n); });
    return { pairs: cells.wide ? new Float64Array(buffer, 0, cells.n) : new Uint32Array(buffer, 0, cells.n), columns };
  }

  // Adds up the pairs of the cells that all of these sliders allow. `of` maps a cell's number to the sum that it belongs to.
  function sums(cells, sliders, at, of, kinds) {
    const asked = sliders.filter((slider) => slider.key in cells.columns).map((slider) => ({ column: cells.columns[slider.key], stop: at[slider.key] + 1, below: slider.below }));
    const total = new Array(kinds).fill(0);
    next: for (let i = 0; i < cells.pairs.length; i++) {
      for (const { column, stop, below } of asked) if (below ? column[i] < stop : column[i] > stop) continue next;
      total[of(i)] += cells.pairs[i];
    }
    return total;
  }

  function yields(found, at) {
    const { sliders, judge, outcome } = found;
    const [kept] = sums(judge, sliders, at, () => 0, 1);
    if (!outcome) return { judge: kept, end: null, isEstimate: true, notSearched: 0 };
    const of = (i) => outcome.columns.outcome[i];
    const seen = sums(outcome, sliders.filter((slider) => slider.text), at, of, 4).reduce((a, b) => a + b, 0);
    const all = sums(outcome, sliders, at, of, 4);
    const scale = kept === seen ? 1 : seen ? kept / seen : 0;
    const isMoved = sliders.some((slider) => at[slider.key] !== slider.at);
    return {
      judge: kept,
      end: Math.round((all[KEPT] + all[NOT_SEARCHED]) * scale),
      isEstimate: kept !== seen || (found.within_pool && isMoved),
      notSearched: found.searched ? Math.round(all[NOT_SEARCHED] * scale) : 0,
    };
  }

  function change(now, before) {
    const by = now - before;
    if (!by) return "no change";
    const percent = before ? `, ${by > 0 ? "+" : "\u2212"}${((100 * Math.abs(by)) / before).toFixed(1)}\u2009%` : "";
    return `${by > 0 ? "+" : "\u2212"}${whole.format(Math.abs(by))}${percent}`;
  }

  const ready = () => { document.documentElement.dataset.whatIf = "ready"; };

  function show(found, at) {
    const now = yields(found, at);
    byId("yield-judge").textContent = whole.format(now.judge);
    byId("yield-judge-change").textContent = change(now.judge, found.kept_by_judge);
    byId("yield-end").textContent = now.end === null ? "unknown" : (now.isEstimate ? "about " : "") + whole.format(now.end);
    byId("yield-end-change").textContent = now.end === null ? "" : change(now.end, found.kept_at_the_end) + (now.isEstimate ? ", estimate" : "");
    const notes = [];
    if (now.end === null) notes.push("This run has no audit/outcome_joint.parquet, so the number at the end is unknown.");
    else if (now.isEstimate && now.judge !== found.kept_by_judge) notes.push("Estimate: the number that judge keeps is exact. Of the new pairs, the same share is assumed to survive the later stages as in this run.");
    if (now.notSearched) notes.push(`${whole.format(now.notSearched)} of them were not searched for near-duplicates yet.`);
    byId("yield-note").textContent = notes.join(" ");
    const moved = found.sliders.filter((slider) => at[slider.key] !== slider.at);
    for (const slider of found.sliders) {
      const input = byId(`slide-${slider.key}`);
      byId(`at-${slider.key}`).textContent = slider.labels[at[slider.key]];
      input.setAttribute("aria-valuetext", slider.labels[at[slider.key]]);
    }
    const sets = moved.map((slider) => ` \\\n  --set ${slider.setting}=${slider.stops[at[slider.key]]}`).join("");
    byId("what-if-command").textContent = moved.length ? `${found.command}${sets}` : "Move a slider to get a command";
  }

  async function start() {
    const form = byId("what-if-form");
    if (!form || !DATA.what_if) return ready();
    if (typeof DecompressionStream === "undefined") {
      byId("what-if-off").textContent = "This browser is too old for this section (it has no DecompressionStream).";
      return ready();
    }
    const found = { ...DATA.what_if, judge: await unpacked(DATA.what_if.judge), outcome: DATA.what_if.outcome && (await unpacked(DATA.what_if.outcome)) };
    const at = Object.fromEntries(found.sliders.map((slider) => [slider.key, slider.at]));
    for (const slider of found.sliders) {
      const input = byId(`slide-${slider.key}`);
      input.value = slider.at;
      input.addEventListener("input", () => {
        at[slider.key] = Number(input.value);
        show(found, at);
      });
    }
    byId("what-if-reset").addEventListener("click", () => {
      for (const slider of found.sliders) {
        byId(`slide-${slider.key}`).value = slider.at;
        at[slider.key] = slider.at;
      }
      show(found, at);
    });
    show(found, at);
    form.hidden = false;
    byId("what-if-off").hidden = true;
    ready();
  }
  return { start, unpacked, sums, change };
})();

"use strict";
// The browse page: pairs of a run, found by filters and by words and pictures; other thresholds; decisions.
(() => {
  const byId = (id) => document.getElementById(id);
  const TOKEN = new URLSearchParams(location.search).get("token") ?? "";
  const WIDE = matchMedia("(min-width: 60rem)");
  const whole = new Intl.NumberFormat("en");
  const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4, notation: "compact" });
  const state = { filter: {}, search: { terms: [] }, sort: "", tab: "look" }; // what the address has
  const thresholds = new Map(); // by setting: those that are not the run's
  const marks = new Set(); // keys
  const revealed = new Set(); // numbers of rows whose blurred picture is shown
  let run = null;

  // Elements: what strangers wrote becomes text, never markup ---------------------------------------------------------

  function h(name, attributes = {}, ...inside) {
    const made = name.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4)) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (typeof value === "function") made.addEventListener(key, value);
      else if (value !== false && value != null) made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...inside.filter((each) => each != null && each !== ""));
    return made;
  }

  // Control and format characters are written out, as in the report: they could turn or hide the text around them.
  const MISLEADING = /(?![\u00ad\u061c\u200c-\u200f])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]|(?<=[\p{Mn}\p{Me}]{4})[\p{Mn}\p{Me}]/gu;
  const NAMES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
  const visible = (text) => text.replace(MISLEADING, (each) => NAMES[each] ?? `\\u${each.codePointAt(0).toString(16).padStart(4, "0")}`);

  function untrusted(text, atMost = 400) {
    const every = [...text], left = every.length - atMost;
    const parts = visible(every.slice(0, atMost).join("")).split("_"); // long names break after underscores
    const shown = h("bdi", { dir: "auto" }, ...parts.flatMap((part, i) => (i ? ["_", h("wbr"), part] : [part])));
    return left > 0 ? h("span", {}, shown, h("span", { class: "cut" }, ` … ${whole.format(left)} characters more`)) : shown;
  }

  const LINK = /^https?:\/\/[!#-&(-;=?-[\]-_a-~]+$/i; // printable ASCII without quotes, angle brackets and backslashes
  const linked = (text) => (LINK.test(text) && text.length <= 500 ? h("a", { href: text, rel: "noreferrer noopener", target: "_blank" }, untrusted(text, 120)) : untrusted(text, 2000));
  const code = (text) => h("span", {}, ...visible(text).split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part)));
  const named = (value) => (value ? untrusted(value, 60) : h("span", { class: "none" }, value === null ? "none" : "empty"));
  const counted = (pairs, images) => `${whole.format(pairs)} pair${pairs === 1 ? "" : "s"}${images == null ? "" : ` of ${whole.format(images)} image${images === 1 ? "" : "s"}`}`;

  // `cards.js` copies what stands before the button.
  const copyable = (text, label) => h("div", { class: "copyable" }, h("pre", {}, h("code", {}, text)), h("button", { type: "button", class: "copy" }, label));

  const sqlOf = (sql, what) => h("details", { class: "sql" }, h("summary", {}, "SQL", h("span", { class: "hidden" }, ` of ${what}`)), copyable(sql, "Copy SQL"));
  // A new query in place of the old one, which stays open if it was.
  function putSql(into, sql, what) {
    const made = sqlOf(sql, what);
    made.open = into.firstElementChild?.open ?? false;
    into.replaceChildren(...(sql ? [made] : []));
  }

  const say = (text) => { byId("said").textContent = text; };

  // Questions to the server -------------------------------------------------------------------------------------------

  const problems = new Map();
  function problem(where, text) {
    text ? problems.set(where, text) : problems.delete(where);
    byId("failed").hidden = !problems.size;
    byId("failed").textContent = [...new Set(problems.values())].join(" ");
  }

  // A file goes as it is, anything else as JSON.
  async function ask(path, body, signal) {
    const [type, sent] = body instanceof Blob ? ["application/octet-stream", body] : ["application/json", JSON.stringify(body)];
    const post = body && { method: "POST", headers: { "content-type": type }, body: sent };
    const answer = await fetch(`${path}?token=${encodeURIComponent(TOKEN)}`, { ...post, signal }).catch((error) => {
      throw signal?.aborted ? error : new Error("The server does not answer; is altalign browse still running?");
    });
    const found = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(found.error ?? `The server answered ${answer.status}.`);
    return found;
  }

  // A place on the page that shows the newest answer: that of an earlier question is thrown away.
  function place(name) {
    let newest = null;
    return async (path, body, use) => {
      newest?.abort();
      const mine = (newest = new AbortController());
      try {
        const found = await ask(path, body, mine.signal);
        if (mine !== newest) return;
        problem(name, "");
        use(found);
      } catch (error) {
        if (mine === newest) problem(name, error.message);
      }
    };
  }

  function later(milliseconds, work) {
    let timer = 0;
    return (...given) => { clearTimeout(timer); timer = setTimeout(work, milliseconds, ...given); };
  }

  // Cards -------------------------------------------------------------------------------------------------------------

  function picture(row) {
    const box = h("div", { class: "picture" });
    const none = () => {
      box.className = "picture none";
      delete box.dataset.n;
      box.replaceChildren(h("span", {}, "no picture", ...(row.stage === "kept" ? [] : [h("br"), h("code", {}, untrusted(row.reason))])));
      return box;
    };
    if (!row.has_picture) return none();
    box.classList.toggle("nsfw", row.is_nsfw);
    box.dataset.n = row.n;
    box.append(h("img", { src: `/picture/${row.n}?token=${encodeURIComponent(TOKEN)}`, alt: "", decoding: "async", draggable: "false", error: none }));
    box.append(h("button", { type: "button", class: "reveal", click: () => reveal(row.n) }));
    showBlur(box);
    return box;
  }

  function showBlur(box) {
    const isShown = revealed.has(Number(box.dataset.n)), button = box.querySelector(".reveal");
    box.classList.toggle("shown", isShown);
    button.setAttribute("aria-pressed", String(isShown));
    button.textContent = isShown ? "Blur again" : box.matches(".nsfw") ? "Show (NSFW score)" : "Show";
  }

  function reveal(n) {
    revealed.has(n) ? revealed.delete(n) : revealed.add(n);
    document.querySelectorAll(`.picture[data-n="${n}"]`).forEach(showBlur);
  }

  function nearness({ cosine }) {
    if (cosine == null) return "";
    const [value, before, after] = searchedBy === "words" ? [`${Math.round(100 * cosine)} %`, "", " of the words"] : [cosine.toFixed(3), "cosine ", ""];
    return h("span", { class: "near" }, ...[before, value, after].map((each) => (each && each !== value ? h("span", { class: "hidden" }, each) : each)));
  }

  function content(row) {
    const size = row.width && row.height ? `${row.width} × ${row.height}` : "";
    const words = row.words == null ? "" : `${whole.format(row.words)} word${row.words === 1 ? "" : "s"}`;
    const badge = row.stage === "kept" ? h("span", { class: "mark same" }, "kept") : h("span", { class: "mark" }, `${row.stage}: `, untrusted(row.reason));
    return [
      picture(row),
      h("p", { class: "caption" }, row.caption ? untrusted(row.caption) : h("span", { class: "none" }, "no caption")),
      h("p", { class: "about" }, nearness(row), badge, h("span", { class: "sub" }, [size, words].filter(Boolean).join(" · "))),
    ];
  }

  // None for what has no key, as a record that cannot be read.
  function markButton(key) {
    if (!key) return "";
    const button = h("button", { type: "button", class: "mark-it", "data-key": key, click: () => mark(key) });
    showMark(button);
    return button;
  }
  function showMark(button) {
    const isMarked = marks.has(button.dataset.key);
    button.setAttribute("aria-pressed", String(isMarked));
    button.textContent = isMarked ? "Marked" : "Mark";
    button.closest("[role=gridcell]")?.setAttribute("aria-selected", String(isMarked));
  }

  function mark(key) {
    if (!key) return say("This has no key, so it cannot be marked");
    marks.has(key) ? marks.delete(key) : marks.add(key);
    say(`${marks.has(key) ? "Marked" : "Mark taken off"}; ${counted(marks.size)} marked`);
    showMarks();
  }
  function showMarks() {
    document.querySelectorAll("button[data-key]").forEach(showMark);
    byId("marked-count").textContent = marks.size ? `(${whole.format(marks.size)})` : "";
    remember();
    if (state.tab === "decide") decide();
  }

  const listed = (rows) => h("ul", { class: "cards" }, ...rows.map((row) => h("li", { class: "card" }, ...content(row), h("p", { class: "buttons" }, markButton(row.key), h("button", { type: "button", click: () => open(row, true) }, "Details")))));

  // The grid: only the cards in view are there -----------------------------------------------------------------------

  const GRID = (() => {
    const box = byId("grid"), space = byId("space");
    // Browsers cap an element's height. A higher list is squeezed between two ends that scroll pixel by pixel.
    const CAP = 8e6, END = 1e5, BLOCK = 60, BLOCKS_AT_MOST = 40;
    const drawn = new Map(), blocks = new Map(), asked = new Map();
    let total = 0, columns = 1, pitch = 1, top = 0, seen = 0, active = 0, isStale = true;

    const lines = () => Math.ceil(total / columns);
    const between = (least, value, most) => Math.max(least, Math.min(value, most));
    const most = () => Math.max(0, lines() * pitch - box.clientHeight); // the greatest `top`
    const scrollMost = () => Math.max(0, Math.min(lines() * pitch, CAP) - box.clientHeight);
    const stretch = () => (most() - 2 * END) / (scrollMost() - 2 * END);
    const isSqueezed = () => lines() * pitch > CAP;

    function toTop(scrolled) {
      if (!isSqueezed() || scrolled <= END) return scrolled;
      if (scrolled >= scrollMost() - END) return most() - (scrollMost() - scrolled);
      return END + (scrolled - END) * stretch();
    }
    function toScrolled(at) {
      if (!isSqueezed() || at <= END) return at;
      if (at >= most() - END) return scrollMost() - (most() - at);
      return END + (at - END) / stretch();
    }

    function scrollTo(at) {
      top = between(0, at, most());
      box.scrollTop = toScrolled(top);
      seen = box.scrollTop;
      draw();
    }

    // A short way is scrolled pixel by pixel; a long one, by the scroll bar, leads to the same share of the list.
    function scrolled() {
      const at = box.scrollTop, moved = at - seen;
      seen = at;
      if (!isSqueezed() || Math.abs(moved) > 2 * box.clientHeight) top = toTop(at);
      else top = between(0, top + moved, most());
      const isAtEnd = (at <= 0 && top > 0) || (at >= scrollMost() && top < most());
      isSqueezed() && (isAtEnd || Math.abs(toScrolled(top) - at) > 5000) ? scrollTo(top) : draw();
    }

    const rowAt = (at) => blocks.get(Math.floor(at / BLOCK))?.[at % BLOCK];
    function cell(at) {
      const row = rowAt(at);
      const made = h("div", { class: "card", role: "gridcell", id: `cell-${at}`, "data-at": at, "aria-selected": String(Boolean(row && marks.has(row.key))) });
      made.classList.toggle("active", at === active);
      made.append(...(row ? [...content(row), markButton(row.key)] : [h("div", { class: "picture none" })]));
      made.querySelectorAll("button").forEach((button) => { button.tabIndex = -1; }); // keys do the same
      return made;
    }

    function fill(line, element) {
      const places = Array.from({ length: Math.min(columns, total - line * columns) }, (_, i) => line * columns + i);
      const isWhole = places.every(rowAt);
      if (element.isWhole || (element.childElementCount && !isWhole)) return;
      element.isWhole = isWhole;
      element.replaceChildren(...places.map(cell));
    }

    function draw() {
      const first = between(0, Math.floor(top / pitch) - 1, lines());
      const last = between(0, Math.ceil((top + box.clientHeight) / pitch) + 1, lines());
      wipe((line) => line < first || line >= last);
      for (let line = last - 1; line >= first; line -= 1) { // from below, so that each goes before the next
        if (!drawn.has(line)) {
          drawn.set(line, h("div", { class: "line", role: "row", "aria-rowindex": line + 1 }));
          space.insertBefore(drawn.get(line), drawn.get(line + 1) ?? null);
        }
        drawn.get(line).style.top = `${line * pitch - top + seen}px`;
        fill(line, drawn.get(line));
      }
      document.getElementById(`cell-${active}`) ? box.setAttribute("aria-activedescendant", `cell-${active}`) : box.removeAttribute("aria-activedescendant");
      if (!isStale) load();
    }

    function wanted() {
      const to = Math.min(total, Math.ceil((top + box.clientHeight) / pitch) * columns);
      const first = Math.floor((Math.floor(top / pitch) * columns) / BLOCK), last = Math.floor((to - 1) / BLOCK);
      return Array.from({ length: Math.max(1, last - first + 1) }, (_, i) => first + i);
    }

    const load = later(60, loadNow);
    function loadNow() {
      const numbers = wanted();
      for (const number of asked.keys()) if (!numbers.includes(number)) forget(number);
      for (const number of numbers) {
        const found = blocks.get(number);
        if (found) blocks.delete(number), blocks.set(number, found); // the last used is the last to go
        else if (!asked.has(number)) fetchBlock(number);
      }
    }
    function forget(number) {
      asked.get(number).abort();
      asked.delete(number);
    }

    async function fetchBlock(number) {
      const control = new AbortController();
      asked.set(number, control);
      try {
        const asks = isSearching() ? { search: sent(state.search) } : { sort: state.sort };
        const found = await ask("/api/rows", { filter: state.filter, ...asks, first: number * BLOCK, count: BLOCK }, control.signal);
        if (control.signal.aborted) return;
        searchedBy = found.by ?? "";
        problem("rows", "");
        blocks.set(number, found.rows);
        while (blocks.size > BLOCKS_AT_MOST) blocks.delete(blocks.keys().next().value);
        arrived(found.total);
      } catch (error) {
        if (control.signal.aborted) return;
        problem("rows", error.message);
        if (!isStale || !isSearching()) return;
        blocks.set(number, []); // not to ask again
        arrived(null); // the list before is not of this search
      } finally {
        if (asked.get(number) === control) asked.delete(number);
      }
    }

    function arrived(found) {
      if (isStale) wipe();
      isStale = false;
      total = found ?? 0;
      active = between(0, active, Math.max(0, total - 1));
      box.setAttribute("aria-busy", "false");
      byId("nothing").hidden = total > 0 || found === null;
      byId("nothing").textContent = isSearching() ? "The search finds none of the pairs that match this filter." : "No pair matches this filter.";
      byId("by-words").hidden = searchedBy !== "words";
      box.hidden = !total;
      size();
      top > most() ? scrollTo(top) : draw();
      TOTAL.rows(found);
    }
    function wipe(isGone = () => true) {
      drawn.forEach((element, line) => { if (isGone(line)) element.remove(), drawn.delete(line); });
    }
    function size() {
      space.style.height = `${Math.min(lines() * pitch, CAP)}px`;
      space.style.setProperty("--columns", columns);
      box.setAttribute("aria-colcount", columns);
      box.setAttribute("aria-rowcount", lines());
    }

    // Other rows: at the top, if they are of another filter; else where one is, as while the server still reads.
    function reset(isOther) {
      [...asked.keys()].forEach(forget);
      blocks.clear();
      drawn.forEach((element) => { element.isWhole = false; });
      if (isOther) {
        isStale = true;
        active = 0;
        box.setAttribute("aria-busy", "true");
        box.hidden = false;
        scrollTo(0);
      }
      loadNow();
    }

    function measure() {
      if (!box.clientWidth) return;
      const rem = parseFloat(getComputedStyle(document.documentElement).fontSize), gap = 0.75 * rem;
      const now = Math.max(1, Math.floor((space.clientWidth + gap) / (10 * rem + gap)));
      if (now === columns && pitch > 1) return scrollTo(top);
      const first = drawn.has(Math.floor(active / columns)) ? active : Math.floor(top / pitch) * columns; // stays in view
      [columns, pitch] = [now, 17.5 * rem];
      wipe();
      size();
      scrollTo(Math.floor(first / columns) * pitch);
    }

    function go(to) {
      if (!total) return;
      document.getElementById(`cell-${active}`)?.classList.remove("active");
      active = between(0, to, total - 1);
      const at = Math.floor(active / columns) * pitch;
      if (at < top) scrollTo(at);
      else if (at + pitch > top + box.clientHeight) scrollTo(at + pitch - box.clientHeight);
      else draw();
      document.getElementById(`cell-${active}`)?.classList.add("active");
    }
    const follow = later(150, (row) => open(row, false));

    function pressed(event) {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const page = columns * Math.max(1, Math.floor(box.clientHeight / pitch));
      const ways = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, PageUp: -page, PageDown: page, Home: -Infinity, End: Infinity };
      const row = rowAt(active);
      if (event.key in ways) {
        go(active + ways[event.key]);
        if (byId("pane").open && rowAt(active)) follow(rowAt(active));
      } else if (event.target !== box) return;
      else if (event.key === "Enter") row && open(row, true);
      else if (event.key === " ") row && mark(row.key);
      else if (event.key.toLowerCase() === "p" && row?.has_picture) reveal(row.n);
      else return;
      event.preventDefault();
    }

    function clicked({ target }) {
      const card = target.closest(".card");
      if (!card) return;
      box.focus({ preventScroll: true });
      go(Number(card.dataset.at));
      if (!target.closest("button") && rowAt(active)) open(rowAt(active), !WIDE.matches);
    }

    box.addEventListener("scroll", scrolled, { passive: true });
    box.addEventListener("keydown", pressed);
    box.addEventListener("click", clicked);
    new ResizeObserver(measure).observe(box);
    return { reset, focus: () => box.focus() };
  })();

  // One pair ----------------------------------------------------------------------------------------------------------

  const askPair = place("pair");
  function open(row, isFocused) {
    const pane = byId("pane"), before = document.activeElement;
    if (!pane.open) WIDE.matches ? pane.show() : pane.showModal();
    isFocused ? byId("pane-title").focus() : before.focus({ preventScroll: true });
    const more = h("div", {}, h("p", { class: "note" }, "Loading…"));
    byId("pane-mark").replaceChildren(markButton(row.key));
    const like = h("button", { type: "button", click: () => { close(); searchLike({ pair: row.key, name: row.caption ?? "" }); } }, "Like this picture");
    byId("pane-body").replaceChildren(...content(row), ...(row.has_picture && run.searches.length ? [h("p", { class: "buttons" }, like)] : []), more);
    pane.scrollTop = 0;
    askPair(`/api/pair/${row.n}`, null, (found) => more.replaceChildren(...details(found)));
  }

  function details(found) {
    const fields = found.fields.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value == null || value === "" ? named(value) : linked(String(value)))]);
    const rules = found.rules.map((rule) => h("li", { class: rule.state === "failed" ? "failed" : rule.state === "passed" ? "passed" : "" }, h("b", {}, rule.state), " ", h("code", {}, rule.reason), h("span", { class: "sub" }, " ", rule.stage), h("br"), code(rule.meaning), ...[rule.measured, rule.setting].filter(Boolean).map((each) => h("span", { class: "sub block" }, untrusted(each)))));
    const related = found.related.map((each) => h("button", { type: "button", click: () => { close(); change({ filter: cleaned(each.filter), tab: "look" }); } }, `${each.what} (${whole.format(each.pairs)})`));
    return [
      ...(related.length ? [h("h3", {}, "Related pairs"), h("p", { class: "buttons" }, ...related)] : []),
      h("h3", {}, "What happened to it"), h("ul", { class: "steps" }, ...found.steps.map((line) => h("li", {}, untrusted(line, 500)))),
      copyable(found.command, "Copy command"),
      h("h3", {}, "Rules"), h("ul", { class: "rules" }, ...rules),
      h("h3", {}, "All fields"), h("dl", { class: "facts" }, ...fields.flat()),
    ];
  }

  const close = () => byId("pane").close(); // where the focus was is the browser's to know
  document.addEventListener("keydown", ({ key }) => { if (key === "Escape" && !byId("pane").matches(":modal")) close(); });
  byId("pane-close").addEventListener("click", close);
  WIDE.addEventListener("change", close);

  // The filter --------------------------------------------------------------------------------------------------------

  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  function parts(given, name, isRight) {
    const found = given[name] ?? {};
    if (!isObject(found) || !Object.values(found).every(isRight)) throw new Error(`its filter's ${name} are not as they should be`);
    return Object.entries(found);
  }

  // A filter without empty parts. Throws if it is none: an address or a decision can hold anything.
  function cleaned(given) {
    if (!isObject(given)) throw new Error("it has no filter");
    for (const name of Object.keys(given)) if (!["values", "ranges", "text", "url"].includes(name)) throw new Error(`its filter has an unknown part, ${visible(name).slice(0, 40)}`);
    const values = parts(given, "values", (each) => Array.isArray(each) && each.every((one) => one === null || typeof one === "string")).filter(([, each]) => each.length);
    const isEnd = (each) => each === null || Number.isFinite(each);
    const ranges = parts(given, "ranges", (each) => Array.isArray(each) && each.length === 2 && each.every(isEnd)).filter(([, each]) => each.some((end) => end !== null));
    const filter = {};
    if (values.length) filter.values = Object.fromEntries(values);
    if (ranges.length) filter.ranges = Object.fromEntries(ranges);
    for (const name of ["text", "url"]) {
      if (given[name] != null && typeof given[name] !== "string") throw new Error(`its filter's ${name} is no text`);
      if (given[name]) filter[name] = given[name];
    }
    return filter;
  }

  const withValues = (name, values) => cleaned({ ...state.filter, values: { ...state.filter.values, [name]: values } });
  const withRange = (name, range) => cleaned({ ...state.filter, ranges: { ...state.filter.ranges, [name]: range } });
  const labelOf = (name) => run.facets.find((each) => each.name === name)?.label ?? visible(name).replaceAll("_", " ");

  // The search --------------------------------------------------------------------------------------------------------

  let searchedBy = ""; // the embedding that the rows shown were found by, or "words"
  const isSearching = () => state.search.terms.length > 0;
  const isWritten = (term) => "text" in term || "url" in term;

  // What an address may hold of a search; other parts are left out.
  function cleanedSearch(given) {
    const kinds = { text: "string", url: "string", pair: "string", picture: "string" };
    const isTerm = (each) => isObject(each) && Object.keys(kinds).filter((kind) => kind in each).length === 1 && Object.keys(each).every((key) => typeof each[key] === ({ ...kinds, minus: "boolean", name: "string" })[key]);
    const terms = Array.isArray(given?.terms) ? given.terms.filter(isTerm) : [];
    return { terms, ...(run.searches.some((each) => each.name === given?.with) ? { with: given.with } : {}) };
  }
  const sent = (search) => ({ ...search, terms: search.terms.map(({ name, ...term }) => term) });
  const withTerms = (terms) => ({ ...state.search, terms });

  // Each field is one term; those of pictures stay.
  function searchFields() {
    const terms = [["search", {}], ["minus", { minus: true }]].flatMap(([id, sign]) => {
      const text = byId(id).value.trim();
      return text ? [{ [/^https?:\/\/\S+$/i.test(text) ? "url" : "text"]: text, ...sign }] : [];
    });
    change({ search: withTerms([...terms, ...state.search.terms.filter((each) => !isWritten(each))]), tab: "look" });
  }

  // One picture at a time, together with what is written.
  function searchLike(term) {
    problem("picture", "");
    change({ search: withTerms([...state.search.terms.filter(isWritten), term]), tab: "look" });
  }

  const askPicture = place("picture");
  function searchFile(file) {
    if (!file) return;
    if (!run.searches.length) problem("picture", "Pictures are compared by embeddings, and this run has none: altalign score makes them.");
    else if (file.size > 16e6) problem("picture", `${visible(file.name).slice(0, 100)} is larger than 16 MB.`);
    else askPicture("/api/picture", file, ({ picture }) => searchLike({ picture, name: file.name }));
  }

  function takePictures() {
    const hasFiles = ({ dataTransfer }) => dataTransfer?.types.includes("Files");
    const outline = (isOn) => document.body.classList.toggle("dropping", isOn);
    addEventListener("dragover", (event) => { if (hasFiles(event)) event.preventDefault(), outline(true); });
    addEventListener("dragleave", ({ relatedTarget }) => { if (!relatedTarget) outline(false); });
    addEventListener("drop", (event) => {
      outline(false);
      if (hasFiles(event)) event.preventDefault(), searchFile(event.dataTransfer.files[0]);
    });
    addEventListener("paste", (event) => {
      const { files: [file], types } = event.clipboardData;
      const isText = event.target.matches?.("input") && types.includes("text/plain"); // office programs give a picture of it, too
      if (file && !isText) event.preventDefault(), searchFile(file);
    });
    byId("picture-file").addEventListener("change", ({ target }) => {
      searchFile(target.files[0]);
      target.value = ""; // the same file can be chosen again
    });
  }

  function showSearch() {
    for (const [id, isMinus] of [["search", false], ["minus", true]]) {
      const term = state.search.terms.find((each) => isWritten(each) && Boolean(each.minus) === isMinus);
      byId(id).value = term?.text ?? term?.url ?? "";
    }
    byId("with").value = state.search.with ?? "";
    byId("sort").disabled = isSearching();
    byId("sort").title = isSearching() ? "A search has the nearest first; without it pairs can be sorted" : "";
    byId("not-search").hidden = !isSearching();
  }

  function chips() {
    const found = [];
    const chip = (label, value, changed) => found.push(h("li", {}, h("button", { type: "button", class: "chip", click: () => { change(changed); byId("main").focus(); } }, `${label}: `, value, h("span", { "aria-hidden": "true" }, " ×"), h("span", { class: "hidden" }, " (take off)"))));
    const add = (label, value, filter) => chip(label, value, { filter });
    for (const term of state.search.terms) {
      const shown = term.text ?? term.url ?? (term.name || "a pair without a caption");
      chip(term.minus ? "But not" : "text" in term ? "Search" : "Like", untrusted(shown, 60), { search: withTerms(state.search.terms.filter((each) => each !== term)) });
    }
    for (const [name, values] of Object.entries(state.filter.values ?? {})) {
      if (values.length > 5) add(labelOf(name), `${values.length} values`, withValues(name, []));
      else for (const value of values) add(labelOf(name), named(value), withValues(name, values.filter((each) => each !== value)));
    }
    for (const [name, [from, to]] of Object.entries(state.filter.ranges ?? {})) add(labelOf(name), from === null ? `at most ${to}` : to === null ? `at least ${from}` : `${from} to ${to}`, withRange(name, [null, null]));
    if (state.filter.text) add("Caption has", untrusted(state.filter.text, 60), { ...state.filter, text: "" });
    if (state.filter.url) add("URL has", untrusted(state.filter.url, 60), { ...state.filter, url: "" });
    if (found.length) found.push(h("li", {}, h("button", { type: "button", id: "clear", click: () => { change({ filter: {}, search: withTerms([]) }); byId("main").focus(); } }, "Clear")));
    byId("chips").replaceChildren(...found);
  }

  function facetOf({ name, label, kind }) {
    const part = kind === "values" ? "values" : "ranges";
    const askCounts = place(`facet ${name}`);
    const choice = h("span", { class: "sub" }), body = h("div"), sql = h("span");
    const element = h("details", { "data-name": name, toggle: () => update() }, h("summary", {}, label, " ", choice), body, sql);
    element.open = ["stage", "reason"].includes(name);
    let question = null, found = null;

    // Its own choice is left out of its counts, so only another filter makes other ones.
    function update(isAnew = false) {
      const chosen = state.filter[part]?.[name];
      choice.textContent = !chosen ? "" : kind === "values" ? `${chosen.length} chosen` : "chosen";
      if (isAnew) question = null; // also of a closed one, which asks when it opens
      if (!element.open) return;
      const asked = JSON.stringify({ ...state.filter, [part]: { ...state.filter[part], [name]: undefined } });
      if (asked === question) return found && draw();
      question = asked;
      askCounts("/api/facet", { filter: state.filter, name }, (answer) => {
        found = answer;
        draw();
        putSql(sql, found.sql, label);
      });
    }

    function draw() {
      const focused = body.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
      body.replaceChildren(...(kind === "values" ? values() : range()));
      if (focused != null) [...body.querySelectorAll("input")].find((each) => each.dataset.focus === focused)?.focus();
    }

    function values() {
      const chosen = state.filter.values?.[name] ?? [];
      const set = (value, isOn) => change({ filter: withValues(name, isOn ? [...chosen, value] : chosen.filter((each) => each !== value)) });
      const known = new Set(found.values.map(([value]) => value));
      const choices = [...found.values, ...chosen.filter((value) => !known.has(value)).map((value) => [value, null])].map(([value, pairs]) => {
        const input = h("input", { type: "checkbox", "data-focus": JSON.stringify(value), change: () => set(value, input.checked) });
        input.checked = chosen.includes(value);
        return h("label", { class: "choice" }, input, h("span", {}, named(value)), h("span", { class: "count" }, pairs === null ? "" : whole.format(pairs)));
      });
      return [h("div", { role: "group", "aria-label": label, class: "choices" }, ...(choices.length ? choices : [h("p", { class: "note" }, "No pairs.")])), ...(found.others ? [h("p", { class: "note" }, `and ${whole.format(found.others)} values with fewer pairs`)] : [])];
    }

    function range() {
      const { bins, missing } = found;
      const chosen = state.filter.ranges?.[name] ?? [null, null];
      const end = (i, word) => {
        const input = h("input", { type: "number", step: "any", "aria-label": `${label}, ${word}`, placeholder: word, "data-focus": word, change: () => {
          const value = input.value === "" ? null : Number(input.value);
          change({ filter: withRange(name, chosen.map((each, at) => (at === i ? value : each))) });
        } });
        input.value = chosen[i] ?? "";
        return input;
      };
      const most = Math.max(1, ...bins.map(([, , pairs]) => pairs));
      const isIn = ([from, to]) => (chosen[0] === null || to >= chosen[0]) && (chosen[1] === null || from <= chosen[1]);
      const bars = bins.map((bin, i) => {
        const [from, to, pairs] = bin, high = pairs ? Math.max(1, (40 * pairs) / most) : 0;
        return h("svg:rect", { x: i, y: 40 - high, width: 0.9, height: high, class: isIn(bin) ? "kept" : "mid" }, h("svg:title", {}, `${short.format(from)} to ${short.format(to)}: ${counted(pairs)}`));
      });
      const drawing = bins.length ? [
        h("svg:svg", { viewBox: `0 0 ${bins.length} 40`, preserveAspectRatio: "none", class: "histogram", role: "img", "aria-label": `${label}: pairs between ${short.format(bins[0][0])} and ${short.format(bins.at(-1)[1])}, at most ${whole.format(most)} in one of ${bins.length} bars` }, ...bars),
        h("p", { class: "ends" }, h("span", {}, short.format(bins[0][0])), h("span", {}, short.format(bins.at(-1)[1]))),
      ] : [h("p", { class: "note" }, "No pair has a value.")];
      return [...drawing, h("p", { class: "range" }, end(0, "from"), " ", end(1, "to")), ...(missing ? [h("p", { class: "note" }, `${counted(missing)} without a value`)] : [])];
    }
    return { element, update };
  }

  const TOTAL = (() => {
    const askCount = place("count");
    let answer = null, found = null; // what matches the filter; how many of it the list has, null after an error
    const show = () => {
      const pairs = answer?.pairs ?? found, matches = pairs === 1 ? "matches" : "match", isFiltered = Object.keys(state.filter).length;
      byId("total").textContent = isSearching() ? nearest(pairs, isFiltered ? ` that ${matches}` : "") : `${counted(pairs, answer?.images)} ${isFiltered ? matches : "in all"}`;
      byId("total").setAttribute("aria-busy", "false");
    };
    function nearest(pairs, that) {
      if (found === null) return "The search failed.";
      const isWords = searchedBy === "words", by = isWords ? ", those with most of the words first" : run.searches.length > 1 && found ? `, by ${searchedBy}` : "";
      const some = !found ? "None" : isWords ? whole.format(found) : found === 1 ? "The nearest" : `The ${whole.format(found)} nearest`;
      return `${some}${answer ? ` of ${counted(pairs)}${that}` : ""}${by}`;
    }
    const count = later(150, () => askCount("/api/count", { filter: state.filter }, (counts) => {
      answer = counts;
      if (!isSearching() || byId("grid").ariaBusy === "false") show();
      putSql(byId("total-sql"), counts.sql, "the total");
    }));
    const rows = (pairs) => {
      found = pairs;
      if (isSearching() || pairs !== answer?.pairs) show();
    };
    return { rows, count: () => { answer = null; byId("total").setAttribute("aria-busy", "true"); count(); } };
  })();

  let facets = [];
  const updateFacets = later(150, (isAnew) => facets.forEach((each) => each.update(isAnew)));

  // What if -----------------------------------------------------------------------------------------------------------

  const rulers = new Map(); // by setting: shows its value
  function ruler(rule) {
    const span = Math.max(Math.abs(rule.value), 20 * rule.step);
    const [tightest, loosest] = [rule.note && !rule.at_least, rule.note && rule.at_least]; // one with a note can only be loosened
    const [least, most] = [tightest ? rule.value : rule.value < 0 ? rule.value - span : 0, loosest ? rule.value : rule.value + span];
    const step = Math.max(rule.step, 10 ** Math.floor(Math.log10(span / 100)));
    const id = `rule-${rulers.size}`;
    const slider = h("input", { type: "range", min: least, max: most, step, "aria-label": `${rule.reason}, threshold`, input: () => set(Number(slider.value)) });
    const number = h("input", { type: "number", step: rule.step, min: tightest ? rule.value : null, max: loosest ? rule.value : null, id, input: () => { if (number.value !== "") set(Number(number.value), true); }, change: () => show() });
    const now = h("span", { class: "sub" });
    const show = (isTyped) => {
      const value = thresholds.get(rule.setting) ?? rule.value;
      slider.value = value;
      if (!isTyped) number.value = value;
      now.textContent = value === rule.value ? "as it is" : `now ${rule.value}`;
      element.classList.toggle("moved", value !== rule.value);
    };
    const set = (value, isTyped) => {
      value === rule.value ? thresholds.delete(rule.setting) : thresholds.set(rule.setting, value);
      show(isTyped);
      remember();
      whatIf();
    };
    const element = h("div", { class: "ruler" }, h("label", { for: id }, code(rule.meaning), h("span", { class: "sub block" }, h("code", {}, rule.setting), rule.at_least ? " at least" : " at most")), slider, number, now, rule.note ? h("p", { class: "note" }, code(rule.note)) : null);
    rulers.set(rule.setting, show);
    show();
    return element;
  }

  const askWhatIf = place("what-if");
  const whatIf = later(250, () => {
    byId("outcome").setAttribute("aria-busy", "true");
    askWhatIf("/api/what-if", { filter: state.filter, thresholds: Object.fromEntries(thresholds) }, (found) => {
      showOutcome(found);
      byId("outcome").setAttribute("aria-busy", "false");
    });
  });

  function showOutcome(found) {
    const number = (value) => h("td", { class: "n" }, value == null ? "…" : whole.format(value)); // known once all pairs are read
    const line = (name, numbers, note) => h("tr", {}, h("th", { scope: "row" }, name, note ? h("span", { class: "sub" }, code(note)) : null), ...numbers.map(number));
    const comes = found.comes.map((each) => line(`Comes from ${each.stage}`, [each.pairs, each.images], each.note));
    const head = h("thead", {}, h("tr", {}, ...["Of the pairs that match", "Pairs", "Images"].map((name, i) => h("th", { scope: "col", class: i ? "n" : null }, name))));
    byId("outcome").replaceChildren(h("table", {}, head, h("tbody", {}, line("Kept now", found.kept), line("Stays", found.stays), line("Goes", found.goes), ...(comes.length ? comes : [line("Comes", [0, 0])]))));
    putSql(byId("outcome-sql"), found.sql, "what if");
    byId("settings").hidden = !found.toml;
    byId("toml").replaceChildren(copyable(found.toml, "Copy settings"));
    byId("rerun").replaceChildren(...(found.command ? [copyable(found.command, "Copy command")] : []));
    for (const [id, title] of [["goes", "Some that would go"], ["comes", "Some that would come"]]) {
      const rows = found.samples[id];
      byId(id).replaceChildren(...(rows.length ? [h("h3", {}, title), listed(rows)] : []));
    }
  }

  // Decide ------------------------------------------------------------------------------------------------------------

  function wish() {
    const { whose, what } = Object.fromEntries(new FormData(byId("decision")));
    return { isMarked: whose === "marked", what };
  }

  const askDecide = place("decide"), askMarked = place("marked");
  const MARKED_AT_MOST = 60;
  const decide = later(150, () => {
    const { isMarked, what } = wish();
    byId("download-keys").disabled = isMarked && !marks.size;
    if (isMarked && !marks.size) {
      byId("basket").textContent = "No pair is marked. Mark pairs in the grid, or choose all that match the filter.";
      for (const id of ["basket-sql", "commands"]) byId(id).replaceChildren();
    } else {
      askDecide("/api/decide", { what, keys: isMarked ? [...marks] : [], filter: isMarked ? null : state.filter }, (found) => {
        byId("basket").textContent = `${counted(found.pairs)}, ${whole.format(found.kept)} of them kept${what === "remove" ? "; dropped ones are removed too." : ": a command acts on those that are kept."}`;
        putSql(byId("basket-sql"), found.sql, "these pairs");
        const where = found.where ? [h("h3", {}, "As a condition"), copyable(found.where, "Copy condition")] : [];
        byId("commands").replaceChildren(h("h3", {}, found.commands.length === 1 ? "Command" : "Commands"), ...found.commands.map((each) => copyable(each, "Copy command")), ...where);
      });
    }
    const keys = [...marks].slice(0, MARKED_AT_MOST);
    if (!keys.length) byId("marked").replaceChildren();
    else askMarked("/api/rows", { filter: { values: { key: keys } }, sort: "", first: 0, count: 2 * MARKED_AT_MOST }, (found) => {
      const most = marks.size > MARKED_AT_MOST ? `Marked pairs (the first ${MARKED_AT_MOST} of ${whole.format(marks.size)})` : "Marked pairs";
      byId("marked").replaceChildren(h("h3", {}, most), h("p", {}, h("button", { type: "button", click: () => { marks.clear(); showMarks(); byId("main").focus(); } }, "Take all marks off")), listed(found.rows));
    });
  });

  const downloaded = (name, href) => h("a", { href, download: name }).click();
  function save(name, text, type) {
    const href = URL.createObjectURL(new Blob([text], { type }));
    downloaded(name, href);
    setTimeout(() => URL.revokeObjectURL(href), 10_000);
  }

  function saveKeys() {
    if (wish().isMarked) save("keys.txt", [...marks].map((key) => `${key}\n`).join(""), "text/plain");
    else downloaded("keys.txt", `/keys?token=${encodeURIComponent(TOKEN)}&what=${wish().what}&filter=${encodeURIComponent(JSON.stringify(state.filter))}`);
  }

  function saveDecision() {
    const decision = { altalign_browse: 1, run: run.folder, filter: state.filter, keys: [...marks], thresholds: Object.fromEntries(thresholds) };
    save("decision.json", `${JSON.stringify(decision, null, 1)}\n`, "application/json");
  }

  async function load({ target }) {
    const [file] = target.files;
    target.value = ""; // the same file can be chosen again
    if (!file) return;
    try {
      const found = await file.text().then(JSON.parse).catch(() => { throw new Error("it is not JSON"); });
      if (!isObject(found) || found.altalign_browse !== 1) throw new Error('it has no "altalign_browse": 1');
      const filter = cleaned(found.filter ?? {}), keys = found.keys ?? [], moved = found.thresholds ?? {};
      if (!Array.isArray(keys) || !keys.every((each) => typeof each === "string")) throw new Error("its keys are no list of texts");
      if (!isObject(moved) || !Object.values(moved).every(Number.isFinite)) throw new Error("its thresholds are no numbers");
      const unknown = Object.keys(moved).filter((each) => !rulers.has(each));
      if (unknown.length) throw new Error(`this run has no threshold ${visible(unknown[0]).slice(0, 60)} to move`);
      restore(keys, moved);
      change({ filter });
      const other = found.run === run.folder || !found.run ? "" : ` It was made on another run, ${visible(String(found.run)).slice(0, 200)}.`;
      byId("loaded").textContent = `Loaded: ${counted(keys.length)} marked, ${Object.keys(moved).length} thresholds moved.${other}`;
    } catch (error) {
      byId("loaded").textContent = `${visible(file.name).slice(0, 100)} is no decision of altalign browse: ${error.message}.`;
    }
  }

  function restore(keys, moved) {
    marks.clear();
    thresholds.clear();
    keys.forEach((key) => marks.add(key));
    Object.entries(moved).forEach(([setting, value]) => thresholds.set(setting, value));
    rulers.forEach((show) => show());
    showMarks();
  }

  // Marks and thresholds outlive a reload of this tab, where the browser has room for them.
  function remember() {
    try {
      sessionStorage.setItem(run.folder, JSON.stringify([[...marks], Object.fromEntries(thresholds)]));
    } catch {
      // a decision can be downloaded
    }
  }

  // The state, in the address -----------------------------------------------------------------------------------------

  let lastQuestion = null, lastSearch = null;
  function apply() {
    for (const name of ["text", "url"]) if (name !== typedIn) byId(name).value = state.filter[name] ?? "";
    byId("sort").value = state.sort;
    for (const button of document.querySelectorAll("[data-tab]")) {
      const isHere = button.dataset.tab === state.tab;
      isHere ? button.setAttribute("aria-current", "page") : button.removeAttribute("aria-current");
      byId(button.dataset.tab).hidden = !isHere;
    }
    byId("sort-field").hidden = state.tab !== "look";
    const asked = JSON.stringify([state.filter, state.sort, state.search]), search = JSON.stringify(state.search);
    if (search !== lastSearch) showSearch(); // else what is being written stays
    lastSearch = search;
    if (asked !== lastQuestion) {
      lastQuestion = asked;
      chips();
      GRID.reset(true);
      TOTAL.count();
      updateFacets(false);
    }
    if (state.tab === "what-if") whatIf();
    if (state.tab === "decide") decide();
  }

  let typedIn = null; // words typed in one field are one step of the history
  function change(changed, field = null) {
    const before = JSON.stringify(state);
    Object.assign(state, changed);
    state.filter = cleaned(state.filter);
    if (JSON.stringify(state) !== before) history[field && field === typedIn ? "replaceState" : "pushState"](state, "", address());
    typedIn = field;
    apply();
  }

  // Pictures from outside are left out: a reload does not bring them back. The history of this tab has them.
  function address() {
    const { search, ...others } = state;
    const lasting = withTerms(search.terms.filter((each) => !("picture" in each)));
    return `#${encodeURIComponent(JSON.stringify({ ...others, ...(lasting.terms.length || lasting.with ? { search: lasting } : {}) }))}`;
  }

  function fromAddress(known = null) {
    let found = {};
    try {
      found = known ?? JSON.parse(decodeURIComponent(location.hash.slice(1)));
      state.filter = cleaned(found.filter ?? {});
    } catch {
      state.filter = {};
    }
    state.search = cleanedSearch(found?.search);
    if (!known) state.search.terms = state.search.terms.filter((each) => !("picture" in each));
    state.sort = [...byId("sort").options].some((each) => each.value === found?.sort) ? found.sort : "";
    state.tab = ["look", "what-if", "decide"].includes(found?.tab) ? found.tab : "look";
    typedIn = null;
    apply();
  }

  // While the server reads, the page follows; facets are counted again when much has come, and at the end.
  let readThen = 0;
  async function refresh() {
    try {
      const was = run;
      run = await ask("/api/run");
      problem("run", run.trouble ?? "");
      byId("changed").hidden = !run.has_changed;
      const pairs = run.is_read ? "" : `${whole.format(run.read)} of ${whole.format(run.pairs)} pairs read`;
      const embeddings = run.search_read < 1 && !run.trouble ? `reading embeddings, ${Math.floor(100 * run.search_read)} %` : "";
      byId("reading").hidden = !pairs && !embeddings;
      byId("reading").textContent = [pairs, embeddings].filter(Boolean).join("; ");
      if (was && (run.read !== was.read || run.is_read !== was.is_read)) {
        if (run.is_read || !isSearching()) GRID.reset(false); // a search takes longer than until the next look
        TOTAL.count();
        if (run.is_read || run.read > 1.5 * readThen) {
          readThen = run.read;
          updateFacets(true);
          apply();
        }
      }
    } catch (error) {
      problem("run", error.message);
    }
    if (run) setTimeout(refresh, run.trouble || (run.is_read && run.search_read >= 1) ? 30_000 : 1000);
  }

  async function start() {
    await refresh();
    if (!run) return;
    document.title = `${visible(run.folder)} – altalign browse`;
    byId("folder").textContent = visible(run.folder);
    facets = run.facets.map(facetOf);
    byId("facets").replaceChildren(...facets.map((each) => each.element), ...(run.notes ?? []).map((each) => h("p", { class: "note" }, code(each))));
    for (const { name, label } of run.sorts) byId("sort").append(h("option", { value: name }, `${label}, low to high`), h("option", { value: `-${name}` }, `${label}, high to low`));
    byId("rules").replaceChildren(...(run.rules.length ? run.rules.map(ruler) : [h("p", { class: "missing" }, "This run has no threshold that can be moved.")]));
    try {
      const [keys, moved] = JSON.parse(sessionStorage.getItem(run.folder)) ?? [[], {}];
      restore(keys, moved);
    } catch {
      restore([], {});
    }

    for (const button of document.querySelectorAll("[data-tab]")) button.addEventListener("click", () => change({ tab: button.dataset.tab }));
    byId("with").append(...run.searches.map(({ name, model }) => h("option", { value: name, title: model || "what images look like, without a model" }, name)));
    byId("with-field").hidden = run.searches.length < 2;
    byId("picture-field").hidden = !run.searches.length;
    byId("with").addEventListener("change", () => change({ search: cleanedSearch({ ...state.search, with: byId("with").value }) }));
    byId("search-form").addEventListener("submit", (event) => { event.preventDefault(); lastQuestion = null; searchFields(); });
    for (const id of ["search", "minus"]) byId(id).addEventListener("input", () => { if (!byId(id).value) searchFields(); });
    takePictures();
    for (const name of ["text", "url"]) byId(name).addEventListener("input", later(250, () => change({ filter: { ...state.filter, [name]: byId(name).value } }, name)));
    byId("sort").addEventListener("change", () => change({ sort: byId("sort").value }));
    byId("filter-form").addEventListener("submit", (event) => event.preventDefault());
    byId("filters-toggle").addEventListener("click", ({ target }) => target.setAttribute("aria-expanded", String(byId("filters").classList.toggle("open"))));
    byId("show-pictures").addEventListener("click", ({ target }) => target.setAttribute("aria-pressed", String(!document.body.classList.toggle("blurred"))));
    byId("skip").addEventListener("click", () => (state.tab === "look" ? GRID.focus() : byId("main").focus()));
    byId("as-they-are").addEventListener("click", () => { restore([...marks], {}); whatIf(); });
    byId("decision").addEventListener("change", decide);
    byId("download-keys").addEventListener("click", saveKeys);
    byId("download-decision").addEventListener("click", saveDecision);
    byId("load").addEventListener("change", load);
    addEventListener("popstate", (event) => fromAddress(event.state));
    fromAddress();
  }

  document.body.classList.add("blurred");
  start();
})();

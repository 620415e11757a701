"use strict";
// The prompt as a slider: a pointer or the keys choose a token, and the page tells which item it
// belongs to and what the chunk around it needs. Everything else works without this script.
(() => {
  const strip = document.getElementById("strip");
  if (!strip) return;
  const data = JSON.parse(document.getElementById("strip-data").textContent);
  const svg = strip.querySelector("svg");
  const marks = document.getElementById("strip-marks");
  const tokenText = document.getElementById("strip-token");
  const chunkText = document.getElementById("strip-chunk");
  const chunkSize = document.getElementById("chunk-size");
  const gutter = Number(svg.dataset.gutter);
  const pitch = Number(svg.dataset.pitch);
  const unitsPerToken = Number(svg.dataset.width) / data.tokensPerLine;
  let token = 0;

  const number = (value) => value.toLocaleString("en-US");
  const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
  const range = (start, end) => `[${number(start)}, ${number(end)})`;
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  /** The chunk around the token: its number, how many there are, its tokens and its rows. */
  function chunk() {
    if (!chunkSize) return null;
    const rowRanges = data.chunks[chunkSize.selectedIndex];
    const size = Number(chunkSize.value);
    const index = Math.floor(token / size);
    const start = index * size;
    const end = Math.min(start + size, data.tokens);
    return { index, count: rowRanges.length, size, start, end, rows: rowRanges[index] };
  }

  function describeToken() {
    const owners = data.runs.filter(([start, end]) => start <= token && token < end);
    const items = owners.map(([, , item, run]) => {
      const [name, numRuns] = data.items[item];
      const which = name ? `item ${item}, ${name}` : `item ${item}`;
      return numRuns > 1 ? `${which}, run ${run + 1} of ${numRuns}` : which;
    });
    return `token ${number(token)}: ${items.join(" and ") || "text"}`;
  }

  function describeChunk({ index, count, start, end, rows }) {
    const where = `Chunk ${number(index + 1)} of ${number(count)}: prompt tokens ${range(start, end)}`;
    const num = rows[1] - rows[0];
    if (!num) return `${where} need no embedding rows.`;
    const few = data.exact ? "" : "up to ";
    const items = new Set(
      data.runs.filter((run) => run[0] < end && start < run[1]).map((run) => run[2]),
    );
    const all = [...items].sort((a, b) => a - b);
    const ends = all.length > 1 ? `items ${all[0]} to ${all[all.length - 1]}` : `item ${all[0]}`;
    return `${where} need ${few}${plural(num, "embedding row")}, ${range(...rows)} of ${number(data.rows)}, of ${ends}.`;
  }

  /** Draw the tokens `[start, end)`, on as many lines as they take. */
  function mark(name, start, end, top, height) {
    for (let from = start; from < end; ) {
      const line = Math.floor(from / data.tokensPerLine);
      const to = Math.min(end, (line + 1) * data.tokensPerLine);
      const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      rect.setAttribute("class", name);
      rect.setAttribute("x", gutter + (from - line * data.tokensPerLine) * unitsPerToken);
      rect.setAttribute("y", line * pitch + top);
      rect.setAttribute("width", Math.max((to - from) * unitsPerToken, 3));
      rect.setAttribute("height", height);
      marks.append(rect);
      from = to;
    }
  }

  function show() {
    const text = describeToken();
    strip.setAttribute("aria-valuenow", token);
    strip.setAttribute("aria-valuetext", text);
    tokenText.textContent = text[0].toUpperCase() + text.slice(1);
    marks.replaceChildren();
    const around = chunk();
    if (around) {
      mark("window", around.start, around.end, 1.5, pitch - 3);
      const needs = describeChunk(around);
      // A live region is read out when it changes: once for each chunk, not for each token.
      if (chunkText.textContent !== needs) chunkText.textContent = needs;
    }
    mark("token", token, token + 1, 0, pitch);
  }

  function choose(value) {
    token = clamp(value, 0, data.tokens - 1);
    show();
  }

  strip.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const line = clamp(Math.floor(((event.clientY - box.top) * scale) / pitch), 0, Infinity);
    const offset = Math.floor(((event.clientX - box.left) * scale - gutter) / unitsPerToken);
    choose(line * data.tokensPerLine + clamp(offset, 0, data.tokensPerLine - 1));
  });
  strip.addEventListener("keydown", (event) => {
    const around = chunk();
    const page = around ? around.size : data.tokensPerLine;
    const targets = {
      ArrowRight: token + 1,
      ArrowLeft: token - 1,
      ArrowDown: token + data.tokensPerLine,
      ArrowUp: token - data.tokensPerLine,
      PageDown: token + page,
      PageUp: token - page,
      Home: 0,
      End: data.tokens - 1,
    };
    if (!(event.key in targets) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    choose(targets[event.key]);
  });
  strip.addEventListener("focus", show);
  chunkSize?.addEventListener("change", show);
})();

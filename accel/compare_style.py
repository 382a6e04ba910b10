"""Style and script of the comparison page; both are written into it, nothing is loaded."""

CSS = """
:root {
  color-scheme: light dark;
  --ground: #f6f7f9; --card: #ffffff; --ink: #1c2430; --soft: #5b6675; --line: #dde2e8;
  --accent: #0b62c4; --good: #0a6b47; --good-ground: #e0f3ea; --bad: #8f3b00; --bad-ground: #fdeadb;
  --computed: #aab4c2; --reused: #e08a00; --forecast: #009e8e; --forced: #5a4fa8;
  --sparse: #2f6fb5; --on-sparse: #ffffff;
  --on-computed: #1c2430; --on-reused: #1c1200; --on-forecast: #001f1c; --on-forced: #ffffff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #10151c; --card: #19202a; --ink: #e6ebf2; --soft: #9aa7b8; --line: #2b3543;
    --accent: #6db1ff; --good: #6fdcae; --good-ground: #12352a; --bad: #ffb37a;
    --bad-ground: #3d2410;
    --computed: #56627a; --reused: #f0a02c; --forecast: #2cc3b1; --forced: #9a8ff0;
    --on-computed: #ffffff; --on-forced: #0d0a26;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
}
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 1.15rem; margin: 40px 0 12px; }
h3 { font-size: 1rem; margin: 0; font-weight: 600; }
.soft { color: var(--soft); margin: 0; overflow-wrap: anywhere; }
code, .number { font-variant-numeric: tabular-nums; }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 20px;
}
.tiles {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 14px;
  margin: 22px 0;
}
.tile b { display: block; font-size: 1.9rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .875rem; }
.badge {
  display: inline-block; border-radius: 99px; padding: 2px 12px; font-size: .875rem;
  font-weight: 600; color: var(--good); background: var(--good-ground); vertical-align: 2px;
}
.badge.bad { color: var(--bad); background: var(--bad-ground); }
.verdicts { list-style: none; margin: 0; padding: 0; display: grid; gap: 8px; }
.verdicts li { padding-left: 14px; border-left: 4px solid var(--accent); }
.verdicts li.bad { border-color: var(--bad); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 7px 10px; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
thead th { color: var(--soft); font-weight: 600; font-size: .875rem; white-space: nowrap; }
tbody tr:last-child td { border-bottom: 0; }
tr.ours td { font-weight: 650; }
.pair { margin-top: 18px; }
.pair header {
  display: flex; flex-wrap: wrap; gap: 4px 16px; justify-content: space-between;
  align-items: baseline; margin-bottom: 14px;
}
.shows {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(180px, 1fr)); gap: 18px;
}
.shows figure:first-child { grid-column: span 2; }
@media (max-width: 480px) { .shows figure:first-child { grid-column: auto; } }
figure { margin: 0; }
figcaption { font-size: .875rem; color: var(--soft); margin-top: 6px; }
figcaption b { color: var(--ink); }
img { display: block; width: 100%; border-radius: 6px; background: var(--line); }
img.small { image-rendering: pixelated; }
.slider { position: relative; --at: 50%; border-radius: 6px; overflow: hidden; }
.slider .over { position: absolute; inset: 0; clip-path: inset(0 0 0 var(--at)); }
.slider .edge {
  position: absolute; inset: 0 auto 0 var(--at); width: 2px; margin-left: -1px;
  background: #fff; box-shadow: 0 0 0 1px rgba(0, 0, 0, .55); pointer-events: none;
}
.slider .edge::after {
  content: "\\2194"; position: absolute; top: 50%; left: 50%; translate: -50% -50%;
  width: 26px; height: 26px; border-radius: 50%; display: grid; place-items: center;
  background: #fff; color: #1c2430; box-shadow: 0 1px 4px rgba(0, 0, 0, .5); font-size: 15px;
}
.slider .tag {
  position: absolute; top: 8px; padding: 1px 8px; border-radius: 5px; font-size: .75rem;
  font-weight: 600; background: rgba(10, 14, 20, .72); color: #fff; pointer-events: none;
}
.slider .tag.a { left: 8px; } .slider .tag.b { right: 8px; }
.slider input {
  position: absolute; inset: 0; width: 100%; height: 100%; margin: 0; opacity: 0;
  cursor: ew-resize;
}
.slider:focus-within { outline: 3px solid var(--accent); outline-offset: 2px; }
button {
  font: inherit; font-size: .875rem; color: var(--ink); background: var(--ground);
  border: 1px solid var(--line); border-radius: 7px; padding: 2px 12px; cursor: pointer;
  user-select: none; white-space: nowrap;
}
button:focus-visible, summary:focus-visible { outline: 3px solid var(--accent); }
.under { display: flex; justify-content: space-between; align-items: center; gap: 10px; }
.ramp { height: 9px; border-radius: 5px; margin-top: 8px; }
.timeline { margin-top: 18px; display: grid; gap: 6px; }
.line { display: grid; grid-template-columns: 84px 1fr; gap: 10px; align-items: center; }
.line > span { color: var(--soft); font-size: .875rem; overflow: hidden; text-overflow: ellipsis; }
.cells { display: flex; gap: 2px; }
.cells i {
  flex: 1 1 0; min-width: 0; height: 24px; border-radius: 4px; display: grid;
  place-items: center; font: 600 11px/1 system-ui, sans-serif; overflow: hidden; cursor: help;
}
.computed { background: var(--computed); color: var(--on-computed); }
.reused { background: var(--reused); color: var(--on-reused); }
.forecast { background: var(--forecast); color: var(--on-forecast); }
.sparse { background: var(--sparse); color: var(--on-sparse); }
.forced { background: var(--forced); color: var(--on-forced); }
.legend span { display: inline-flex; align-items: center; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: .875rem; color: var(--soft); }
.legend i {
  display: inline-grid; place-items: center; width: 18px; height: 18px; border-radius: 4px;
  margin-right: 6px; font: 600 11px/1 system-ui, sans-serif;
}
details { margin-top: 12px; font-size: .9rem; }
summary { cursor: pointer; color: var(--accent); }
details table { margin-top: 8px; font-size: .85rem; }
details td:nth-child(3), details th:nth-child(3), details td:nth-child(4), details th:nth-child(4),
details td:nth-child(2), details th:nth-child(2) { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 560px) { dl { grid-template-columns: 1fr; } dd { margin-bottom: 8px; } }
"""

JS = """
for (const slider of document.querySelectorAll(".slider")) {
  const range = slider.querySelector("input");
  const move = value => slider.style.setProperty("--at", value + "%");
  range.addEventListener("input", () => move(range.value));
  const flip = slider.parentElement.querySelector("button");
  let left = true;
  flip.addEventListener("click", () => {
    range.value = left ? 0 : 100;
    left = !left;
    move(range.value);
    flip.textContent = left ? "Show B" : "Show A";
  });
}
"""

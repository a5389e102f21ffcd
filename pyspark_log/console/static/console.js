// What a page does beside showing: it renews itself unless it is paused or hidden, draws the lag, and changes colours.
// No page needs it.
"use strict";
(() => {
  const themes = ["system", "light", "dark"];
  const root = document.documentElement;

  // --- colours ---------------------------------------------------------------------------------------------------
  const theme = document.getElementById("theme");
  const shownTheme = () => root.dataset.theme || "system";
  const nameTheme = () => { theme.textContent = `Theme: ${shownTheme()}`; };
  if (theme) {
    theme.hidden = false;
    nameTheme();
    theme.addEventListener("click", () => {
      const next = themes[(themes.indexOf(shownTheme()) + 1) % themes.length];
      if (next === "system") delete root.dataset.theme; else root.dataset.theme = next;
      try { localStorage.setItem("pylog-theme", next); } catch { /* not kept */ }
      nameTheme();
      drawLag(true);
    });
  }

  // --- renewing --------------------------------------------------------------------------------------------------
  const live = document.getElementById("live");
  const pause = document.getElementById("pause");
  const freshness = document.getElementById("freshness");
  let isPaused = false;
  const clock = () => new Date().toISOString().slice(11, 19);
  const say = (text, isStale) => {
    if (!freshness) return;
    freshness.textContent = text;
    freshness.classList.toggle("stale", Boolean(isStale));
  };
  if (pause) {
    pause.hidden = freshness.hidden = false;
    say(`Live · ${clock()} UTC`);
    pause.addEventListener("click", () => {
      isPaused = !isPaused;
      pause.setAttribute("aria-pressed", String(isPaused));
      say(isPaused ? `Paused · ${clock()} UTC` : `Live · ${clock()} UTC`, isPaused);
    });
  }
  document.addEventListener("htmx:before:request", (event) => {
    if (isPaused || document.hidden) event.preventDefault();
  });
  document.addEventListener("htmx:after:request", (event) => {
    const status = event.detail?.ctx?.response?.status ?? 0;
    if (status >= 500) say(`Not current since ${clock()} UTC`, true); else say(`Live · ${clock()} UTC`);
  });
  document.addEventListener("htmx:error", () => say("The console does not answer", true));
  document.addEventListener("htmx:after:swap", () => drawLag(false));

  // --- the chart -------------------------------------------------------------------------------------------------
  let chart = null;
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  function drawLag(isAnew) {
    const place = document.getElementById("lag-chart");
    if (!place || typeof uPlot === "undefined") return;
    const source = document.getElementById(place.dataset.from);
    if (!source) return;
    const series = JSON.parse(source.dataset.series);
    if (series[0].length < 2) return;
    if (chart && isAnew) { chart.destroy(); chart = null; }
    if (chart) { chart.setData(series); return; }
    place.querySelector("[data-waiting]")?.remove();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    chart = new uPlot({
      width: place.clientWidth,
      height: 200,
      cursor: { points: { size: 6 } },
      legend: { show: false },
      scales: { y: { range: (_, least, most) => [0, Math.max(10, most * 1.08)] } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      axes: [{ ...axis, space: 80, values: (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toISOString().slice(11, 19)) }, { ...axis, size: 76, values: (_, ticks) => ticks.map((tick) => grouped.format(tick)) }],
      series: [{}, { label: "Lag", stroke: colour("--accent"), width: 2, fill: colour("--accent-soft"), points: { show: false } }],
    }, series, place);
  }
  new ResizeObserver(() => {
    const place = document.getElementById("lag-chart");
    if (chart && place) chart.setSize({ width: place.clientWidth, height: 200 });
  }).observe(document.body);
  drawLag(false);
  if (live) live.setAttribute("data-ready", "");
})();

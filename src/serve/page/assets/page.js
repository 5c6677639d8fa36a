// The page of sliders: asks the program for every setting and draws the answer with ECharts.
(() => {
  'use strict';
  const root = document.documentElement;
  const failed = [];
  const fail = (message) => { failed.push(message); root.dataset.errors = failed.join('; '); };
  addEventListener('error', (event) => fail(event.message));
  addEventListener('unhandledrejection', (event) => fail(String(event.reason)));
  const $ = (id) => document.getElementById(id);
  const { controls, first } = JSON.parse($('data').textContent);
  const PALETTE = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#8a8f98', '#b8a800', '#7f5fc7', '#882255', '#117733', '#999933'];
  const GROUPS = { chip: 'The chip', fabric: 'The network, one direction of a device', cluster: 'The cluster', plan: 'The plan' };
  const NARROW = 640;
  let now = first;

  const significant = (value, digits = 4) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return '-';
    if (value === 0) return '0';
    const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
    return value.toLocaleString('en-US', { maximumFractionDigits: Math.min(places, 12) });
  };
  const time = (seconds) => {
    for (const [unit, size] of [['s', 1], ['ms', 1e-3], ['µs', 1e-6]]) if (Math.abs(seconds) >= size) return `${significant(seconds / size)} ${unit}`;
    return `${significant(seconds * 1e9)} ns`;
  };
  const element = (name, attributes = {}, children = []) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) if (key === 'text') made.textContent = value; else made.setAttribute(key, value);
    made.append(...children);
    return made;
  };

  // ---- charts ----
  const colours = () => {
    const style = getComputedStyle(root);
    return Object.fromEntries(['paper', 'ink', 'faint', 'line', 'panel', 'mark'].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  };
  const instances = {};
  const chart = (name, height, option) => {
    const place = $(`chart-${name}`), theme = colours();
    place.style.height = `${height}px`;
    instances[name] ??= echarts.init(place, null, { renderer: 'svg' });
    instances[name].resize();
    instances[name].setOption({ animation: false, color: PALETTE, backgroundColor: 'transparent', textStyle: { color: theme.ink, fontFamily: 'system-ui, sans-serif' }, ...option(theme, place.clientWidth),
      tooltip: { confine: true, renderMode: 'richText', backgroundColor: theme.panel, borderColor: theme.line, textStyle: { color: theme.ink, fontSize: 12 } } }, true);
    place.dataset.drawn = 'true';
  };
  const axis = (theme, name, more = {}) => ({ name, nameLocation: 'middle', nameGap: 30, nameTextStyle: { color: theme.ink }, axisLabel: { color: theme.faint, hideOverlap: true },
    axisLine: { lineStyle: { color: theme.line } }, splitLine: { lineStyle: { color: theme.line, opacity: 0.5 } }, ...more });
  const names = (theme, data) => ({ type: 'category', inverse: true, data, axisTick: { show: false }, axisLine: { lineStyle: { color: theme.line } }, axisLabel: { color: theme.ink } });
  const legend = (theme) => ({ type: 'scroll', top: 0, textStyle: { color: theme.ink }, pageTextStyle: { color: theme.ink }, pageIconColor: theme.mark });
  // Stacked bars: a row per name, a series per part that is anywhere above nothing.
  const bars = (theme, unit, rows, marks = []) => {
    const parts = [...new Set(rows.flatMap((row) => Object.keys(row.parts)))].filter((part) => rows.some((row) => row.parts[part] > 0));
    const series = parts.map((part) => ({ type: 'bar', stack: 'all', name: part.replaceAll('_', ' '), barMaxWidth: 34, data: rows.map((row) => row.parts[part] ?? 0) }));
    if (series.length && marks.length) series[0].markLine = { symbol: 'none', silent: true, label: { show: false }, lineStyle: { color: theme.ink, type: 'dashed' }, data: marks.map((xAxis) => ({ xAxis })) };
    const most = Math.max(0, ...marks, ...rows.map((row) => Object.values(row.parts).reduce((sum, value) => sum + value, 0)));
    return { legend: legend(theme), grid: { left: 74, right: 20, top: 40, bottom: 48 }, xAxis: axis(theme, unit, { type: 'value', max: most * 1.05 }), yAxis: names(theme, rows.map((row) => row.name)), series };
  };

  const step = () => chart('step', 190, (theme) => bars(theme, 'seconds', [{ name: 'start', parts: first.plan.parts_s }, { name: 'now', parts: now.plan.parts_s }]));
  const memory = () => chart('memory', 90 + 36 * now.stages.length, (theme) =>
    bars(theme, 'GiB', now.stages.map((stage) => ({ name: `stage ${stage.stage}`, parts: stage.classes_gib })), [now.capacity_gib]));
  const roofline = () => chart('roofline', 400, (theme) => {
    const { x, y, names: entries, series } = kernelsUnderRoofs(now.roofline, theme);
    return { legend: { ...legend(theme), data: entries, itemWidth: 14 }, grid: { left: 62, right: 20, top: 40, bottom: 48 }, series,
      xAxis: axis(theme, 'operations per byte', { type: 'log', min: x[0], max: x[1] }), yAxis: axis(theme, 'TFLOP/s', { type: 'log', min: y[0], max: y[1], nameGap: 44 }) };
  });
  const RATIOS = [['throughput', (a) => a.plan.tokens_per_s], ['step', (a) => a.plan.step_s], ['peak memory', (a) => a.plan.peak_gib], ['energy', (a) => a.energy?.step_j], ['MFU', (a) => a.plan.mfu]];
  const comparison = () => chart('comparison', 210, (theme) => {
    const rows = RATIOS.map(([name, of]) => [name, of(now) / of(first)]).filter(([, ratio]) => Number.isFinite(ratio));
    return { grid: { left: 100, right: 56, top: 8, bottom: 48 }, xAxis: axis(theme, 'times the start', { type: 'value', min: 0 }), yAxis: names(theme, rows.map(([name]) => name)),
      series: [{ type: 'bar', barMaxWidth: 20, data: rows.map(([, ratio]) => ratio), label: { show: true, position: 'right', color: theme.ink, formatter: ({ value }) => significant(value, 3) },
        markLine: { symbol: 'none', silent: true, label: { show: false }, lineStyle: { color: theme.ink }, data: [{ xAxis: 1 }] } }] };
  });

  // ---- the answer in words ----
  const words = () => {
    $('title').textContent = `${now.job.model.name} on ${now.job.cluster.devices} x ${now.job.chip.name}`;
    const { plan } = now, sure = plan.evidence ?? {}, interval = sure.step_interval_s;
    const facts = [['step', time(plan.step_s)], ['90 % interval', interval ? `${time(interval[0])} to ${time(interval[1])}` : 'unknown'], ['tokens per second', significant(plan.tokens_per_s)],
      ['MFU', `${significant(plan.mfu * 100, 3)} %`], ['peak memory', `${significant(plan.peak_gib, 3)} of ${significant(now.capacity_gib, 3)} GiB`], ['answered in', `${significant(now.took_ms, 2)} ms`]];
    $('facts').replaceChildren(...facts.map(([name, value]) => element('div', { class: 'fact' }, [element('b', { text: value }), element('span', { text: name })])));
    const ratio = now.plan.tokens_per_s / first.plan.tokens_per_s, lead = sure.design_lead;
    const much = Math.max(ratio, 1 / ratio);
    $('lead').textContent = `Throughput is ${significant(ratio, 3)} times that of the start. ` + (lead && much > 1 && much < lead ? `Too close to call: the model's error between designs is a factor of ${significant(lead, 3)}.` : '');
  };
  const drawn = () => {
    for (const part of [words, step, memory, roofline, comparison]) try { part(); } catch (error) { fail(`${part.name}: ${error.message}`); }
    // What is wider than the page would have to be scrolled to: a test looks at this.
    root.dataset.overflow = String(document.body.scrollWidth > document.body.clientWidth + 1);
  };

  // ---- sliders ----
  const sliders = new Map();
  let asking = false, waiting = false;
  // One question at a time; the last setting is asked for when the answer to the one before has come.
  const ask = async () => {
    if (asking) { waiting = true; return; }
    asking = true;
    do {
      waiting = false;
      const settings = Object.fromEntries([...sliders].map(([key, slider]) => [key, Number(slider.value)]));
      const began = performance.now();
      try {
        const answer = await (await fetch('answer', { method: 'POST', body: JSON.stringify(settings) })).json();
        const why = answer.error ?? (answer.feasible ? null : answer.why);
        $('fault').hidden = !why;
        $('fault').textContent = why ?? '';
        document.querySelector('main').classList.toggle('stale', Boolean(why));
        if (!why) { now = answer; drawn(); }
        root.dataset.took = String(Math.max(answer.took_ms ?? 0, 0));
        root.dataset.redrawn = String(performance.now() - began);
      } catch (error) {
        $('fault').hidden = false;
        $('fault').textContent = 'The program that serves this page has ended.';
      }
      root.dataset.moves = String(Number(root.dataset.moves ?? 0) + 1);
    } while (waiting);
    asking = false;
  };
  const show = (control, slider, shown) => { shown.textContent = control.values[slider.value]; };
  for (const [group, title] of Object.entries(GROUPS)) {
    const own = controls.filter((control) => control.group === group);
    if (own.length) $('controls').append(element('h2', { text: title }));
    for (const control of own) {
      const slider = element('input', { type: 'range', min: 0, max: control.values.length - 1, step: 1, value: control.at, 'data-key': control.key, 'aria-label': control.label });
      const shown = element('b');
      show(control, slider, shown);
      slider.addEventListener('input', () => { show(control, slider, shown); ask(); });
      sliders.set(control.key, slider);
      $('controls').append(element('label', {}, [shown, element('span', { text: control.label }), slider]));
    }
  }
  const back = element('button', { type: 'button', text: 'back to the start' });
  back.addEventListener('click', () => { for (const control of controls) { const slider = sliders.get(control.key); slider.value = control.at; slider.dispatchEvent(new Event('input')); } });
  $('controls').append(back);

  const themed = (name) => { root.dataset.theme = name; drawn(); };
  // `#dark` and `#light` ask for a theme, else the system's; a number for a width; KEY=PLACE moves a slider.
  const wanted = location.hash.slice(1).split(',');
  const width = wanted.find((word) => /^\d+$/.test(word));
  if (width) document.body.style.maxWidth = `${width}px`;
  themed(wanted.find((word) => ['dark', 'light'].includes(word)) ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'));
  $('theme').addEventListener('click', () => themed(root.dataset.theme === 'dark' ? 'light' : 'dark'));
  let resized = 0;
  addEventListener('resize', () => { clearTimeout(resized); resized = setTimeout(drawn, 100); });
  for (const word of wanted) {
    const [key, place] = word.split('='), slider = sliders.get(key);
    if (slider && place !== undefined) { slider.value = place; slider.dispatchEvent(new Event('input')); }
  }
  root.dataset.ready = String(Object.keys(instances).length);
})();

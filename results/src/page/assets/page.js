// The report's page: reads the JSON in the page and draws it with ECharts. Everything shown as text goes through textContent.
(() => {
  'use strict';
  const root = document.documentElement;
  const failed = [];
  const fail = (message) => { failed.push(message); root.dataset.errors = failed.join('; '); };
  addEventListener('error', (event) => fail(event.message));

  const page = JSON.parse(document.getElementById('data').textContent);
  // Okabe and Ito's palette, which the colour-blind can tell apart, and three of Paul Tol's muted scheme: there are twelve classes of memory.
  const PALETTE = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#8a8f98', '#b8a800', '#7f5fc7', '#882255', '#117733', '#999933'];
  const NARROW = 640;
  const LONG = 40;

  // ---- words ----
  const significant = (value, digits = 4) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return '-';
    if (value === 0) return '0';
    const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
    return value.toLocaleString('en-US', { minimumFractionDigits: 0, maximumFractionDigits: Math.min(places, 12) });
  };
  const percent = (fraction, digits = 1) => `${(fraction * 100).toFixed(digits)} %`;
  const signed = (points) => { const text = points.toFixed(1); return Number(text) === 0 ? '0.0 %' : `${points > 0 ? '+' : ''}${text} %`; };
  const time = (seconds) => {
    for (const [unit, size] of [['s', 1], ['ms', 1e-3], ['µs', 1e-6]]) if (Math.abs(seconds) >= size) return `${significant(seconds / size)} ${unit}`;
    return seconds === 0 ? '0 s' : `${significant(seconds * 1e9)} ns`;
  };
  const bytes = (count) => {
    for (const [unit, size] of [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]]) if (count >= size) return `${significant(count / size)} ${unit}`;
    return `${count} B`;
  };
  const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]);
  const lines = (pairs) => pairs.filter(([, value]) => value !== null && value !== undefined && value !== '')
    .map(([key, value]) => (key ? `${escaped(key)}: <b>${escaped(value)}</b>` : `<b>${escaped(value)}</b>`)).join('<br>');

  // ---- elements ----
  const element = (name, attributes = {}, children = []) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === 'text') made.textContent = value; else if (value !== undefined) made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };
  const main = document.getElementById('main');
  const section = (id, title, ...paragraphs) => {
    const made = element('section', { id }, [element('h2', { text: title })]);
    paragraphs.filter(Boolean).forEach((text) => made.append(element('p', { text })));
    main.append(made);
    return made;
  };
  const table = (head, rows) => {
    const numeric = head.map((_, i) => rows.length > 0 && rows.every((row) => /^[-+]?[\d.,]*(\s?\S{0,9})?$/.test(String(row[i])) && /\d|^-$/.test(String(row[i]))));
    const cell = (name, text, i) => element(name, { text, class: numeric[i] ? 'number' : 'text', 'data-head': name === 'td' ? head[i] : undefined });
    // On a narrow screen a row with sentences stands as a list.
    const long = rows.some((row) => row.some((text) => String(text).length > LONG));
    const made = element('table', { class: long ? 'sentences' : undefined }, [
      element('thead', {}, [element('tr', {}, head.map((text, i) => cell('th', text, i)))]),
      element('tbody', {}, rows.map((row) => element('tr', {}, row.map((text, i) => cell('td', text, i))))),
    ]);
    return element('div', { class: 'wide' }, [made]);
  };
  const folded = (title, content) => element('details', {}, [element('summary', { text: title }), content]);

  // ---- charts ----
  const charts = [];
  const colours = () => {
    const style = getComputedStyle(root);
    return Object.fromEntries(['paper', 'ink', 'faint', 'line', 'panel', 'mark'].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  };
  // A chart in a section; `option` gives ECharts' option for a width in pixels and the theme's colours, and its height.
  const chart = (into, id, caption, option) => {
    const place = element('div', { class: 'chart', id: `chart-${id}`, 'data-chart': id, role: 'img', 'aria-label': caption });
    into.append(element('figure', {}, [place, element('figcaption', { text: caption })]));
    const made = { place, instance: null };
    made.draw = () => {
      const theme = colours();
      const width = place.clientWidth;
      const { height, ...rest } = option(width, theme);
      place.style.height = `${height}px`;
      if (made.instance) made.instance.dispose();
      made.instance = echarts.init(place, null, { renderer: rest.many ? 'canvas' : 'svg' });
      delete rest.many;
      made.instance.setOption({
        animation: false, color: PALETTE, backgroundColor: 'transparent', textStyle: { color: theme.ink, fontFamily: 'system-ui, sans-serif' }, ...rest,
        tooltip: { confine: true, backgroundColor: theme.panel, borderColor: theme.line, textStyle: { color: theme.ink, fontSize: 12 }, ...rest.tooltip },
      });
      place.dataset.drawn = 'true';
    };
    charts.push(made);
    return made;
  };
  const axis = (theme, name, more = {}) => ({
    name, nameLocation: 'middle', nameGap: 30, nameTextStyle: { color: theme.ink }, axisLabel: { color: theme.faint, hideOverlap: true },
    axisLine: { lineStyle: { color: theme.line } }, splitLine: { lineStyle: { color: theme.line, opacity: 0.5 } }, ...more,
  });
  const legend = (theme, more = {}) => ({ type: 'scroll', top: 0, textStyle: { color: theme.ink }, pageTextStyle: { color: theme.ink }, pageIconColor: theme.mark, ...more });
  // Names beside horizontal bars: as wide as a third of the chart, wrapped.
  const names = (theme, width, data) => ({
    type: 'category', inverse: true, data, axisTick: { show: false }, axisLine: { lineStyle: { color: theme.line } },
    axisLabel: { color: theme.ink, width: Math.min(300, width * 0.38), overflow: 'break', interval: 0, fontSize: 12, lineHeight: 13 },
  });
  const rows = (width, count) => 60 + (width < NARROW ? 44 : 34) * count;
  const beside = (width) => Math.min(310, width * 0.4 + 8);

  // ---- sections ----
  const question = () => {
    const made = section('question', 'The question', ...page.question);
    page.left_out.forEach((text) => made.append(element('p', { class: 'faint', text: `Left out: ${text}` })));
  };
  const answer = () => {
    const made = section('answer', 'The answer', ...page.answer);
    made.append(element('div', { class: 'facts' }, page.facts.map((fact) =>
      element('div', { class: 'fact' }, [element('span', { text: fact.name }), element('b', { text: fact.value, class: fact.value.length > 18 ? 'long' : undefined }), element('span', { text: fact.note || '' })]))));
    page.notes.forEach((text) => made.append(element('p', { text })));
  };
  const drawings = () => page.drawings.forEach((drawing) => {
    const made = section('drawing', drawing.title);
    made.append(element('figure', {}, [element('img', { src: `data:image/svg+xml,${encodeURIComponent(drawing.svg)}`, alt: drawing.caption, style: 'max-width: 100%; background: #fff' }), element('figcaption', { text: drawing.caption })]));
  });
  const tables = () => page.tables.forEach((own) => section('table', own.title, own.note).append(table(own.heads, own.rows)));
  const evidence = () => {
    const { figures, rests, leads } = page.evidence;
    if (!figures.length) return;
    const made = section('evidence', 'How far the figures can be trusted', 'An interval holds the measured value in 9 of 10 cases: it is made of the errors on measured training runs that were left out of the fit, and is the wider the less was measured.');
    made.append(table(['figure', 'of', 'predicted', '90 % interval', 'what it rests on', 'not measured in training runs'], figures.map((row) => [row.figure, row.of, row.predicted, row.interval, row.grade, row.why])));
    if (rests.length) {
      made.append(element('p', { text: 'Of what the best plan rests on, this was not measured itself in training runs; the rest was.' }));
      made.append(table(['what', 'name', 'how it is known', 'measured nearest to it'], rests.map((row) => [row.on, row.name, row.grade, row.measured])));
    }
    leads.forEach((lead) => made.append(element('p', { class: 'faint', text: `Of ${lead.name} it is settled with 95 % confidence that it is slower where its step is predicted at least ${lead.value}.` })));
  };
  const dies = () => {
    if (!page.dies.length) return;
    const made = section('dies', 'The chip, to scale', 'Each square has the area of its compute dies, each rectangle in it the area of that part; where a part lies is not modelled. Areas here are the model\'s; the tables have a built chip\'s published die where there is one.',
      page.dies.some((die) => die.node !== page.dies[0].node) ? 'The chips are of different processes: a mm² of one is not a mm² of another.' : '');
    const side = (die) => Math.sqrt(die.area_mm2);
    // A part has one colour in all chips, whether it stands in a core or beside the others.
    const kind = (p) => p.name.replace(/s$/, '');
    const leaves = (p) => (p.parts && p.parts.length ? p.parts.flatMap(leaves) : [kind(p)]);
    const all = [...new Set(page.dies.flatMap((die) => die.parts.flatMap(leaves)))];
    const colour = [...PALETTE, '#7a4a2b', '#005f73', '#b3446c', '#6f7d2c'];
    const part = (p) => ({ name: p.name, value: p.area_mm2, children: p.parts && p.parts.length ? p.parts.map(part) : undefined, itemStyle: { color: colour[Math.max(all.indexOf(kind(p)), 0) % colour.length] } });
    chart(made, 'dies', 'areas of compute dies by part, mm²', (width, theme) => {
      const row = width >= NARROW;
      const sum = page.dies.reduce((total, die) => total + side(die), 0);
      const largest = Math.max(...page.dies.map(side));
      const gap = 24, title = 52;
      const scale = row ? Math.min((width - gap * page.dies.length) / sum, 420 / largest) : Math.min(width - 8, 280) / largest;
      let left = 4, top = title;
      const series = [], titles = [];
      page.dies.forEach((die) => {
        const size = side(die) * scale;
        series.push({
          type: 'treemap', name: die.name, left, top, width: size, height: size, roam: false, nodeClick: false, breadcrumb: { show: false }, leafDepth: undefined,
          label: { show: true, overflow: 'none', fontSize: 11, color: '#fff' }, upperLabel: { show: false },
          // A name that does not fit is left to the tooltip and the table.
          labelLayout: (at) => (at.labelRect.width + 4 > at.rect.width || at.labelRect.height + 2 > at.rect.height ? { x: -999, y: -999 } : {}),
          itemStyle: { borderColor: theme.paper, borderWidth: 0, gapWidth: 1 },
          levels: [{ itemStyle: { gapWidth: 2, borderWidth: 0 } }, { itemStyle: { gapWidth: 1 } }],
          data: die.parts.map(part),
          tooltip: { formatter: (at) => lines([['', die.name], [at.name, `${significant(at.value)} mm²`], ['of the dies', percent(at.value / die.area_mm2)]]) },
        });
        titles.push({ text: die.name, subtext: `${significant(die.area_mm2)} mm², ${die.node}`, left: left - 5, top: top - title, itemGap: 6,
          textStyle: { fontSize: 13, lineHeight: 18, color: theme.ink, width: Math.max(size, 90), overflow: 'truncate' }, subtextStyle: { fontSize: 12, lineHeight: 16, color: theme.faint } });
        if (row) left += Math.max(size, 100) + gap; else top += size + title + 12;
      });
      return { height: row ? largest * scale + title + 8 : top - title, title: titles, tooltip: {}, series };
    });
    const rows = page.dies.flatMap((die) => die.parts.map((p) => [die.name, p.name, significant(p.area_mm2), percent(p.area_mm2 / die.area_mm2)]));
    made.append(folded('the parts as a table', table(['chip', 'part', 'mm²', 'share'], rows)));
  };
  const AXES = [['area_mm2', 'area, mm²'], ['peak_power_w', 'peak power, W'], ['cost_usd', 'cost, USD'], ['energy_per_step_j', 'energy per step, J']];
  const OUTCOMES = { evaluated: 'evaluated', pruned: 'rejected, at its bound', open: 'undecided, at its bound' };
  const pareto = () => {
    if (!page.designs || !page.designs.rows.length) return;
    const { columns } = page.designs;
    const designs = page.designs.rows.map((row) => Object.fromEntries(columns.map((name, i) => [name, row[i]])));
    const made = section('pareto', 'What else there is: the designs', page.designs.shown);
    const field = (label, input) => element('label', { text: label }, [input]);
    const against = element('select', {}, AXES.filter(([key]) => designs.some((d) => d[key] !== null)).map(([value, text]) => element('option', { value, text })));
    const area = element('input', { type: 'number', min: '0', placeholder: 'any' });
    const power = element('input', { type: 'number', min: '0', placeholder: 'any' });
    const words = element('input', { type: 'search', placeholder: 'e.g. 128x128' });
    made.append(element('div', { class: 'filters' }, [field('throughput against', against), field('area at most, mm²', area), field('peak power at most, W', power), field('chip has', words)]));
    const kept = () => designs.filter((d) => (!area.value || d.area_mm2 <= Number(area.value))
      && (!power.value || (d.peak_power_w !== null && d.peak_power_w <= Number(power.value)))
      && (!words.value || `${d.chip} ${d.dimensions || ''}`.toLowerCase().includes(words.value.toLowerCase())));
    const height = (d) => (d.outcome === 'evaluated' ? d.sequences_per_s : d.bound_sequences_per_s);
    const place = (d, key) => [d[key], height(d)];
    const front = (list, key) => {
      const found = [];
      list.filter((d) => d.outcome === 'evaluated' && d[key] !== null).sort((a, b) => a[key] - b[key] || height(b) - height(a))
        .forEach((d) => { if (!found.length || height(d) > height(found[found.length - 1])) found.push(d); });
      return found;
    };
    const count = element('p', { class: 'faint' });
    const list = element('div');
    // A mm² of one process is not one of another.
    const nodes = [...new Set(designs.map((d) => d.node))];
    const node = nodes.length === 1 ? nodes[0] : null;
    const called = (entry) => (entry.node && entry.node !== node ? `${entry.label} (${entry.node})` : entry.label);
    // A label beside its mark, over no other mark and no other label where there is such a place, and over as few of the crowd as can be.
    const labelled = (points, crowd, width) => {
      const labels = new Map();
      return ({ dataIndex, labelRect: { width: w, height: h } }) => {
        const at = (value) => drawn.instance.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, value);
        const marks = points.map((point) => at(point.value)), dots = crowd.map(at);
        const [x, y] = marks[dataIndex];
        const places = [12, 30, 60].flatMap((far) => [[x + far, y - h / 2], [x - far - w, y - h / 2], [x - w / 2, y - far - h], [x - w / 2, y + far],
          ...[-1, 1].flatMap((up) => [[x + far * 0.7, y + up * far * 0.7 - h / 2], [x - far * 0.7 - w, y + up * far * 0.7 - h / 2]])]);
        const others = [...marks.filter((_, i) => i !== dataIndex).map(([mx, my]) => [mx - 9, my - 9, mx + 9, my + 9]), ...[...labels].filter(([i]) => i !== dataIndex).map(([, rect]) => rect)];
        const cost = ([left, top], rank) => {
          const covers = ([l, t, r, b]) => left < r && l < left + w && top < b && t < top + h;
          const outside = left < 66 || left + w > width - 4 || top < 30 || top + h > 412;
          return (outside ? 1e6 : 0) + 1e4 * others.filter(covers).length + Math.min(20, dots.filter(([dx, dy]) => covers([dx - 3, dy - 3, dx + 3, dy + 3])).length) + rank / 4;
        };
        const costs = places.map(cost), best = costs.indexOf(Math.min(...costs));
        const [left, top] = places[best];
        labels.set(dataIndex, [left, top, left + w, top + h]);
        return { x: left, y: top, align: 'left', verticalAlign: 'top' };
      };
    };
    // A search by bad ends has no front: the best come first.
    const rate = page.robust ? 'sequences/s at the bad end' : 'sequences/s';
    const first = (list, key) => (page.robust ? list.filter((d) => d.outcome === 'evaluated').sort((a, b) => height(b) - height(a)) : front(list, key).reverse());
    const of = (entry) => (page.robust && entry.step_interval_s ? entry.throughput_sequences_per_s * entry.step_time_s / entry.step_interval_s[1] : entry.throughput_sequences_per_s);
    const drawn = chart(made, 'pareto', page.robust ? 'throughput of the evaluated designs at the bad end of their steps’ 90 % intervals' : 'throughput of the designs; the line joins those that no other evaluated one beats in both', (width, theme) => {
      const key = against.value, list = kept(), best = page.robust ? [] : front(list, key);
      const point = (d) => ({ value: place(d, key), design: d });
      const groups = Object.entries(OUTCOMES).map(([outcome, name], i) => ({
        type: 'scatter', name, z: outcome === 'evaluated' ? 3 : 1, symbolSize: outcome === 'evaluated' ? 8 : 4, itemStyle: { color: [PALETTE[0], PALETTE[6], PALETTE[1]][i], opacity: outcome === 'evaluated' ? 0.9 : 0.3 },
        data: list.filter((d) => d.outcome === outcome && d[key] !== null && height(d) !== null).map(point),
      })).filter((group) => group.data.length);
      // The same chip in other forms, and on other fabrics, is in the table only.
      const here = page.comparison.filter((entry) => entry.compared_with === undefined && entry.baseline?.standing !== 'as_sold');
      const named = here.filter((entry) => entry[key] !== null && entry[key] !== undefined && entry.throughput_sequences_per_s !== null);
      // The found design is a filled diamond. Every other chip has an outline or a colour of its own, which covers no other mark.
      const MARKS = ['triangle', 'rect', 'circle', 'pin', 'arrow', 'roundRect', 'diamond'], COLOURS = [5, 3, 8, 9].map((i) => PALETTE[i]);
      const points = named.map((entry) => ({ value: [entry[key], of(entry)], entry }));
      const layout = labelled(points, list.filter((d) => d.outcome === 'evaluated' && d[key] !== null).map((d) => place(d, key)), width);
      const others = points.map((point, i) => {
        const found = point.entry === here[0], turn = Math.floor(i / MARKS.length), colour = COLOURS[turn % COLOURS.length];
        return {
          type: 'scatter', name: called(point.entry), symbol: found ? 'diamond' : MARKS[(i + MARKS.length - 1) % MARKS.length], symbolSize: 13, z: 5,
          itemStyle: { color: found ? colour : 'transparent', borderColor: colour, borderWidth: 2 }, labelLayout: (at) => layout({ ...at, dataIndex: i }), data: [point],
          label: { show: width >= NARROW, formatter: () => called(point.entry), position: 'right', color: theme.ink, fontSize: 11 },
        };
      });
      const tip = (at) => {
        const d = at.data.design, e = at.data.entry;
        if (e) return lines([['', e.label], ['chip', e.chip], ['throughput', `${significant(of(e))} ${rate}`], ['area', `${significant(e.area_mm2)} mm² (${e.node || 'node unknown'})`]]);
        return lines([['', d.chip], ['', d.dimensions], [d.outcome === 'evaluated' ? 'throughput' : 'at most', `${significant(height(d))} ${rate}`], ['area', `${significant(d.area_mm2)} mm²`],
          ['peak power', d.peak_power_w === null ? null : `${significant(d.peak_power_w)} W`], ['cost', d.cost_usd === null ? null : `${significant(d.cost_usd)} USD`], ['plan', d.plan], ['bound by', d.bound_by]]);
      };
      count.textContent = `${list.length.toLocaleString('en-US')} of ${designs.length.toLocaleString('en-US')} designs shown${page.robust ? '' : `; ${best.length} that no other evaluated one dominates`}.`;
      return {
        height: 460, many: list.length > 1500, legend: legend(theme, { itemWidth: 14 }), grid: { left: 66, right: 16, top: 40, bottom: 48 }, tooltip: { trigger: 'item', formatter: tip, extraCssText: 'max-width: 340px; white-space: normal;' },
        dataZoom: [{ type: 'inside', xAxisIndex: 0, zoomOnMouseWheel: 'ctrl' }],
        xAxis: axis(theme, AXES.find(([k]) => k === key)[1] + (key === 'area_mm2' && node ? ` at ${node}` : ''), { type: 'value', scale: true }), yAxis: axis(theme, rate, { type: 'value', scale: true, nameGap: 48 }),
        series: [...groups, ...(page.robust ? [] : [{ type: 'line', name: 'not dominated', z: 4, step: 'end', symbol: 'none', lineStyle: { width: 2, color: PALETTE[2] }, itemStyle: { color: PALETTE[2] }, data: best.map((d) => place(d, key)), tooltip: { show: false } }]), ...others],
      };
    });
    const tell = () => {
      const best = first(kept(), against.value);
      list.replaceChildren(table(['chip', 'mm²', 'peak W', rate, 'plan'],
        best.slice(0, 40).map((d) => [d.dimensions || d.chip, significant(d.area_mm2), significant(d.peak_power_w), significant(d.sequences_per_s), d.plan || '-'])));
    };
    made.append(count, folded(page.robust ? 'the 40 best as a table' : 'those that are not dominated as a table (40 fastest)', list));
    [against, area, power, words].forEach((input) => input.addEventListener('input', () => { drawn.draw(); tell(); }));
    tell();
  };
  const comparison = () => {
    const entries = page.comparison;
    if (entries.length < 2) return;
    const unit = page.comparison_unit;
    const made = section('comparison', 'Beside other chips', 'Built chips on the found design’s network under the study’s stack, by their fitted scalars and in the ideal form; and as they are sold, on their own network under their own stack. Each is compared with the found design on the same terms.',
      page.robust ? 'The search ranked designs by the bad end of their steps’ 90 % intervals, in the table beside the predicted step; what else is shown here is predicted.' : '');
    const value = (e) => e.objective_value ?? e.throughput_tokens_per_s ?? null;
    chart(made, 'comparison', unit, (width, theme) => ({
      height: rows(width, entries.length), grid: { left: beside(width), right: 70, top: 8, bottom: 48 }, xAxis: axis(theme, unit, { type: 'value' }), yAxis: names(theme, width, entries.map((e) => e.label)),
      tooltip: { formatter: (at) => lines([['', entries[at.dataIndex].label], ['chip', entries[at.dataIndex].chip], ['plan', entries[at.dataIndex].plan], ['network', entries[at.dataIndex].fabric], ['stack', entries[at.dataIndex].stack], ['', entries[at.dataIndex].note]]), extraCssText: 'max-width: 340px; white-space: normal;' },
      series: [{ type: 'bar', data: entries.map((e, i) => ({ value: value(e) ?? 0, itemStyle: { color: i ? PALETTE[6] : PALETTE[0] } })),
        label: { show: true, position: 'right', color: theme.ink, formatter: (at) => (value(entries[at.dataIndex]) === null ? 'none fits' : significant(at.value)) } }],
    }));
    const ends = (e) => (page.robust ? [significant(e.step_time_s), e.step_interval_s ? significant(e.step_interval_s[1]) : '-'] : []);
    made.append(table(['design', 'port GB/s', 'efficiency', 'stack', unit, 'found is', 'MFU', 'mm²', 'node', 'peak W', 'USD', ...(page.robust ? ['step, s', 'bad end, s'] : [])], entries.map((e, i) => [e.label, significant(e.port_gb_per_s), e.efficiency || '-', e.stack || '-', significant(value(e)),
      page.leads[i] === null ? '-' : `${page.leads[i].toFixed(2)} x`, e.mfu === null ? '-' : percent(e.mfu), significant(e.area_mm2), e.node || '-', significant(e.peak_power_w, 3), significant(e.cost_usd, 3), ...ends(e)])));
    if (page.gain) {
      const whole = page.gain.causes.reduce((product, { factor }) => product * factor, 1);
      made.append(element('p', { text: `The lead over ${page.gain.over}, ${whole.toFixed(2)} x, is the product of these changes, one after the other, each under its best plan:` }));
      made.append(table(['change', 'factor'], page.gain.causes.map(({ cause, factor }) => [cause, factor.toFixed(3)])));
    }
    entries.filter((e) => e.note).forEach((e) => made.append(element('p', { class: 'faint', text: `${e.label}: ${e.note}` })));
  };
  const decision = () => {
    const sure = page.decision;
    if (!sure) return;
    const made = section('sure', 'How sure the choice is',
      `${sure.constants} constants of the model that matter here are not known exactly. Under ${sure.draws} draws of them, the same for all designs, the found design is the best in ${percent(sure.probability_best)}; choosing it costs ${percent(sure.regret_expected)} on average, and ${percent(sure.regret_95)} in 95 of 100 draws.`,
      sure.robust.is_found ? 'It is also the choice with the least expected cost.' : `The choice with the least expected cost differs in ${sure.robust.differs_in}: ${percent(sure.robust.regret_expected)} on average.`);
    const shown = [...sure.tornado].sort((a, b) => Math.abs(b.lead_high - b.lead_low) - Math.abs(a.lead_high - a.lead_low)).slice(0, 10);
    if (shown.length) {
      chart(made, 'tornado', 'mean lead of the found design over the best other one, percent', (width, theme) => ({
        height: rows(width, shown.length) + 30, legend: legend(theme), grid: { left: beside(width), right: 30, top: 36, bottom: 48 }, xAxis: axis(theme, 'percent', { type: 'value' }), yAxis: names(theme, width, shown.map((row) => row.input)),
        tooltip: { formatter: (at) => { const row = shown[at.dataIndex]; return lines([['', row.input], ['from', significant(row.low)], ['to', significant(row.high)], ['', row.unit]]); }, extraCssText: 'max-width: 340px; white-space: normal;' },
        series: [['in the lowest quarter of its range', 'lead_low', PALETTE[6]], ['in the highest', 'lead_high', PALETTE[0]]].map(([name, key, color]) => ({ type: 'bar', name, itemStyle: { color }, data: shown.map((row) => row[key] * 100) })),
      }));
    }
    made.append(table(['dimension', 'found', 'in', 'else', 'in '], sure.settled.map((of) => [of.dimension, of.value, percent(of.probability), of.other ?? '-', of.other_probability === null ? '-' : percent(of.other_probability)])));
    made.append(folded(`the ${sure.finalists.length} finalists as a table`, table(['differs in', 'best in', 'regret', '95 of 100 below', 'cannot run in', 'over a limit in'], sure.finalists.map((of) => [of.is_found ? 'the found design' : of.differs_in, percent(of.probability_best), percent(of.regret_expected), percent(of.regret_95), percent(of.lost ?? 0), percent(of.over_limits)]))));
  };
  const shares = () => {
    if (!page.shares.length) return;
    const made = section('time', 'Where the time goes', 'Parts of one optimizer step; forward and backward kernels by what bounds them.');
    chart(made, 'time', 'share of the step, percent', (width, theme) => ({
      height: rows(width, page.shares.length), grid: { left: beside(width), right: 60, top: 8, bottom: 48 }, xAxis: axis(theme, 'percent of the step', { type: 'value' }), yAxis: names(theme, width, page.shares.map((s) => s.name)),
      tooltip: { formatter: (at) => lines([[at.name, `${at.value.toFixed(2)} %`], ['time', time(at.value / 100 * page.step_s)]]) },
      series: [{ type: 'bar', data: page.shares.map((s) => s.fraction * 100), label: { show: true, position: 'right', color: theme.ink, formatter: (at) => `${at.value.toFixed(1)} %` } }],
    }));
  };
  const roofline = () => {
    const roof = page.roofline;
    if (!roof) return;
    const { levels } = roof;
    const made = section('roofline', 'Every kernel under the roofline',
      `One micro-batch on the slowest stage (stage ${roof.stage}). The roofs are what the chip's file says: ${significant(roof.peak_tflop_per_s)} TFLOP/s of the arrays, ${significant(roof.vector_tflop_per_s)} of the lanes, and GB/s of each memory that the kernels touch: ${levels.map((level) => `${level.name} ${significant(level.gb_per_s)}`).join(', ')}.`,
      'A kernel that a memory bounds has this memory\'s mark and stands at its operations per byte of it. A dot is bound by no memory and stands at its operations per byte of device memory. A mark grows with its share of the micro-batch\'s time.');
    const total = roof.kernels.reduce((sum, k) => sum + k.latency_s * k.count, 0);
    chart(made, 'roofline', 'operations per second against operations per byte', (width, theme) => {
      const { x, y, names: entries, series } = kernelsUnderRoofs(roof, theme);
      return {
        height: 440, legend: legend(theme, { data: entries, itemWidth: 14 }), grid: { left: 62, right: 20, top: 40, bottom: 48 },
        xAxis: axis(theme, 'operations per byte', { type: 'log', min: x[0], max: x[1] }), yAxis: axis(theme, 'TFLOP/s', { type: 'log', min: y[0], max: y[1], nameGap: 44 }),
        tooltip: { trigger: 'item', formatter: ({ data }) => lines([['', data.kernel.name], ['pass', data.kernel.pass], ['takes', `${time(data.kernel.latency_s)}, ${data.kernel.count} times`], ['reaches', `${significant(data.value[1])} TFLOP/s`],
          ['of the peak', data.kernel.utilization === null ? null : percent(data.kernel.utilization)], ...levels.map((level, i) => [`through ${level.name}`, data.kernel.level_bytes[i] ? bytes(Math.round(data.kernel.level_bytes[i])) : null]), ['bound by', data.kernel.bound]]) },
        series,
      };
    });
    const { drawn } = kernelsUnderRoofs(roof, colours());
    const outside = roof.kernels.length - drawn.length;
    if (outside) made.append(element('p', { class: 'faint', text: `${outside} kernels are in the table only: collectives, copies, and those that touch no memory of the chip.` }));
    const sorted = [...roof.kernels].sort((a, b) => b.latency_s * b.count - a.latency_s * a.count);
    made.append(folded(`all ${sorted.length} kernels as a table`, table(['kernel', 'pass', 'runs on', 'times', 'each', 'share', 'of the peak', 'bound by'], sorted.map((k) => [k.name, k.pass, k.span, k.count, time(k.latency_s), percent(k.latency_s * k.count / total), k.utilization === null ? '-' : percent(k.utilization), k.bound]))));
  };
  const timeline = () => {
    const played = page.timeline;
    if (played) {
      const stages = played.stages.length;
      const made = section('timeline', 'The step, pass by pass', played.shown);
      chart(made, 'timeline', 'passes of every stage over a step; drag to move, Ctrl and the wheel or the slider to zoom', (width, theme) => {
        const bar = (params, api) => {
          const from = api.coord([api.value(1), api.value(0)]), to = api.coord([api.value(2), api.value(0)]);
          const height = api.size([0, 1])[1] * 0.7;
          const shape = echarts.graphic.clipRectByRect({ x: from[0], y: from[1] - height / 2, width: Math.max(to[0] - from[0], 0.3), height }, { x: params.coordSys.x, y: params.coordSys.y, width: params.coordSys.width, height: params.coordSys.height });
          return shape && { type: 'rect', shape, style: { fill: api.visual('color') } };
        };
        const series = played.kinds.map((name, kind) => ({ type: 'custom', name, renderItem: bar, encode: { x: [1, 2], y: 0 }, itemStyle: { color: PALETTE[kind] }, clip: true,
          data: played.events.filter((e) => e[1] === kind).map((e) => [e[0], e[4], e[4] + e[5], e[2], e[3]]) })).filter((s) => s.data.length);
        return {
          height: 130 + Math.min(26, Math.max(8, 640 / stages)) * stages, many: played.events.length > 1500, legend: legend(theme), grid: { left: 62, right: 20, top: 40, bottom: 86 },
          dataZoom: [{ type: 'slider', bottom: 8, height: 20, filterMode: 'weakFilter', labelFormatter: (v) => time(v), textStyle: { color: theme.faint } }, { type: 'inside', filterMode: 'weakFilter', zoomOnMouseWheel: 'ctrl' }],
          xAxis: axis(theme, 'seconds', { type: 'value', min: 0, max: played.shown_s, axisLabel: { color: theme.faint, formatter: (v) => significant(v), hideOverlap: true } }),
          yAxis: axis(theme, 'stage', { type: 'category', inverse: true, nameGap: 36, data: played.stages.map((s) => String(s.stage)) }),
          tooltip: { formatter: (at) => lines([['', `${at.seriesName}, stage ${at.value[0]}`], ['micro-batch', at.value[3]], ['chunk', at.value[4]], ['from', time(at.value[1])], ['takes', time(at.value[2] - at.value[1])]]) }, series,
        };
      });
    }
    if (!page.stages_over_a_step.length) return;
    const rows = page.stages_over_a_step;
    const made = played ? document.getElementById('timeline') : section('timeline', 'The stages over a step');
    chart(made, 'stages', 'each stage over the whole step, seconds', (width, theme) => {
      const bar = (name, of) => ({ type: 'bar', stack: 'step', name, data: rows.map(of) });
      return {
        height: 110 + 22 * rows.length, legend: legend(theme), grid: { left: 62, right: 20, top: 40, bottom: 48 }, xAxis: axis(theme, 'seconds', { type: 'value' }), yAxis: axis(theme, 'stage', { type: 'category', inverse: true, nameGap: 36, data: rows.map((r) => String(r.stage)) }),
        tooltip: { formatter: (at) => lines([['', `stage ${at.name}`], [at.seriesName, time(at.value)]]) },
        series: [bar('passes', (r) => r.busy_s), bar('waiting for sends', (r) => r.exposed_send_s), bar('bubble', (r) => r.bubble_s - r.exposed_send_s), bar('exchange not hidden', (r) => r.exposed_reduction_s)],
      };
    });
  };
  const memory = () => {
    const made = page.memory.length || page.timeline ? section('memory', 'Memory of a device', `A device has ${significant(page.capacity_gib)} GiB for the program.`) : null;
    if (page.memory.length) {
      const classes = Object.keys(page.memory[0].classes_gib).filter((name) => page.memory.some((stage) => stage.classes_gib[name] > 0));
      chart(made, 'memory-classes', 'the fullest moment of every stage by class, GiB', (width, theme) => ({
        height: 380, legend: legend(theme), grid: { left: 58, right: 20, top: 40, bottom: 48 }, tooltip: { trigger: 'axis', axisPointer: { type: 'shadow' }, valueFormatter: (v) => `${significant(v)} GiB` },
        xAxis: axis(theme, 'stage', { type: 'category', data: page.memory.map((s) => String(s.stage)) }), yAxis: axis(theme, 'GiB', { type: 'value', nameGap: 40, axisLabel: { color: theme.faint, showMaxLabel: false }, max: ({ max }) => (page.capacity_gib > max && page.capacity_gib < 3 * max ? Math.ceil(page.capacity_gib * 1.04) : null) }),
        series: classes.map((name, i) => ({ type: 'bar', stack: 'memory', name, barMaxWidth: 60, data: page.memory.map((s) => s.classes_gib[name]),
          markLine: i || !page.capacity_gib ? undefined : { silent: true, symbol: 'none', data: [{ yAxis: page.capacity_gib }], label: { formatter: 'capacity', position: 'insideEndTop', color: theme.ink }, lineStyle: { color: theme.ink } } })),
      }));
    }
    if (page.timeline) {
      chart(made, 'memory-time', 'memory over the step by stage, GiB; the update at its end is not in it', (width, theme) => ({
        height: 360, many: page.timeline.stages.length > 16, legend: legend(theme), grid: { left: 58, right: 20, top: 40, bottom: 48 }, tooltip: { trigger: 'axis', valueFormatter: (v) => `${significant(v)} GiB` },
        xAxis: axis(theme, 'seconds', { type: 'value', min: 0, max: page.timeline.total_s, axisLabel: { color: theme.faint, formatter: (v) => significant(v), hideOverlap: true }, axisPointer: { label: { formatter: ({ value }) => time(value) } } }), yAxis: axis(theme, 'GiB', { type: 'value', nameGap: 40, min: 0 }),
        series: page.timeline.stages.map((s) => ({ type: 'line', name: `stage ${s.stage}`, step: 'end', symbol: 'none', lineStyle: { width: 1.5 }, data: s.memory_gib })),
      }));
    }
  };
  const decisions = () => {
    if (!page.decisions.length) return;
    const made = section('decisions', 'What each decision bought', 'The plan with one decision changed and all else kept: how much longer a step takes then, or why it does not run.');
    const runs = page.decisions.filter((d) => d.step_s !== null).slice(0, 25);
    const shown = runs.length < page.decisions.length ? 'Those that are not drawn are in the table.' : '';
    if (runs.length) chart(made, 'decisions', `step time beside the chosen plan, percent. ${shown}`, (width, theme) => ({
      height: rows(width, runs.length), grid: { left: beside(width), right: 70, top: 8, bottom: 48 }, xAxis: axis(theme, 'percent longer', { type: 'value' }), yAxis: names(theme, width, runs.map((d) => (d.step_s < page.step_s ? `${d.change} (not among the plans searched)` : d.change))),
      tooltip: { formatter: (at) => lines([['', at.name], ['step', time(runs[at.dataIndex].step_s)], ['', runs[at.dataIndex].why]]), extraCssText: 'max-width: 340px; white-space: normal;' },
      series: [{ type: 'bar', data: runs.map((d) => (d.step_s / page.step_s - 1) * 100), label: { show: true, position: 'right', color: theme.ink, formatter: (at) => signed(at.value) } }],
    }));
    made.append(folded(`all ${page.decisions.length} as a table`, table(['decision', 'step', 'why not'], page.decisions.map((d) => [d.change, d.step_s === null ? '-' : time(d.step_s), d.why]))));
  };
  const certificate = () => {
    if (!page.certificate.length) return;
    const made = section('certificate', 'What is proven', ...page.proof);
    made.append(table(['', ''], page.certificate.map((fact) => [fact.name, fact.value])));
  };
  const provenance = () => {
    if (!page.sources.length && !page.assumptions.length) return;
    const made = section('provenance', 'Where the constants are from', 'Every figure of a chip, fabric and stack names its source in its file.');
    page.assumptions.forEach((text) => made.append(element('p', { text: `Assumed: ${text}` })));
    page.sources.forEach((file) => made.append(folded(`${file.file}: ${file.rows.length} sources`, table(['what', 'from'], file.rows))));
  };

  const drawn = () => {
    charts.forEach((one) => one.draw());
    // What is wider than the page would have to be scrolled to: a test looks at this.
    root.dataset.overflow = String(document.body.scrollWidth > document.body.clientWidth + 1);
  };
  const themed = (name) => { root.dataset.theme = name; drawn(); };
  document.getElementById('title').textContent = page.title;
  document.getElementById('footer').textContent = page.made_by;
  for (const part of [question, answer, drawings, tables, evidence, dies, pareto, comparison, decision, shares, roofline, timeline, memory, decisions, certificate, provenance]) {
    try { part(); } catch (error) { fail(`${part.name}: ${error.message}`); throw error; }
  }
  // `#dark` and `#light` ask for a theme; else the system's.
  const wanted = location.hash.slice(1);
  themed(['dark', 'light'].includes(wanted) ? wanted : matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  document.getElementById('theme').addEventListener('click', () => themed(root.dataset.theme === 'dark' ? 'light' : 'dark'));
  let waiting = 0;
  addEventListener('resize', () => { clearTimeout(waiting); waiting = setTimeout(drawn, 100); });
  root.dataset.ready = String(charts.length);
})();

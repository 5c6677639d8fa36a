// The kernels under the roofs of a chip, one roof per memory that they touch, as series of ECharts and the ends of both axes.
const kernelsUnderRoofs = (roof, theme) => {
  'use strict';
  // The marks of the memories, the device memory first.
  const MARKS = ['triangle', 'diamond', 'rect', 'arrow', 'pin'];
  const { levels, kernels } = roof;
  const mark = (level) => MARKS[Math.min(levels.length - 1 - level, MARKS.length - 1)];
  // The memory at which a kernel stands: the one that bounds it, else the outermost that it touches.
  const stands = (k) => k.level ?? k.level_bytes.findLastIndex((bytes) => bytes > 0);
  const place = (k) => [k.operations / k.level_bytes[stands(k)], k.operations / k.latency_s / 1e12];
  const drawn = kernels.filter((k) => k.operations > 0 && k.latency_s > 0 && k.level_bytes[stands(k)] > 0);
  const total = kernels.reduce((sum, k) => sum + k.latency_s * k.count, 0);
  const top = Math.max(roof.peak_tflop_per_s, roof.vector_tflop_per_s);
  const ridge = (level, peak) => peak * 1e3 / level.gb_per_s;
  const power = (value, way) => 10 ** way(Math.log10(value));
  const [x, y] = [drawn.map((k) => place(k)[0]), drawn.map((k) => place(k)[1])];
  const ridges = levels.map((level) => ridge(level, top));
  const [x0, x1] = [power(Math.min(...x, ...ridges, 0.1), Math.floor), power(Math.max(...x, ...ridges.map((at) => at * 10)), Math.ceil)];
  const [y0, y1] = [power(Math.min(...y, roof.vector_tflop_per_s || top), Math.floor), power(top * 1.2, Math.ceil)];
  const line = (name, type, data) => ({ type: 'line', name, symbol: 'none', lineStyle: { color: theme.faint, type, width: 1.5 }, itemStyle: { color: theme.faint }, tooltip: { show: false }, showAllSymbol: true, z: 1, data });
  const end = (value) => ({ value, symbol: 'none' });
  const flat = (name, type, peak) => (peak > 0 ? [line(name, type, [end([Math.max(x0, Math.min(...levels.map((level) => ridge(level, peak)))), peak]), end([x1, peak])])] : []);
  // A slanted roof has its memory's mark and name on it; those of several memories stand at different heights.
  const slanted = levels.map((level, i) => {
    const from = Math.max(x0, ridge(level, y0)), to = ridge(level, top), part = 0.55 + 0.3 * (i + 1) / (levels.length + 1);
    const middle = from * (to / from) ** part, at = (intensity) => [intensity, intensity * level.gb_per_s / 1e3];
    return line(level.name, 'solid', [end(at(from)), { value: at(middle), symbol: mark(i), symbolSize: 9, label: { show: true, position: 'left', formatter: level.name, color: theme.ink, fontSize: 11, backgroundColor: theme.paper, padding: [1, 2] } }, end(at(to))]);
  });
  const kinds = [...new Set(drawn.map((k) => k.kind))];
  const dots = kinds.map((kind) => ({ type: 'scatter', name: kind, z: 3, data: drawn.filter((k) => k.kind === kind).map((k) => ({
    kernel: k, name: k.name, value: place(k), symbol: k.level === null ? 'circle' : mark(k.level), symbolSize: 6 + 34 * Math.sqrt(k.latency_s * k.count / total), itemStyle: { opacity: 0.75 } })) }));
  const names = [...levels.map((level, i) => ({ name: level.name, icon: mark(i) })), { name: 'arrays' }, { name: 'lanes' }, ...kinds.map((name) => ({ name, icon: 'circle' }))];
  return { drawn, x: [x0, x1], y: [y0, y1], names, series: [...slanted, ...flat('arrays', 'solid', roof.peak_tflop_per_s), ...flat('lanes', 'dashed', roof.vector_tflop_per_s), ...dots] };
};

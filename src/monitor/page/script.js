'use strict';
// Whatever comes from the daemon is put in as text, never as markup.
const EVERY_MS = 2000, ANSWER_MS = 10000, KEPT = 1800;
// List prices of S3 Standard in us-east-1, in dollars a request.
const PRICES = { put: 5e-6, list: 5e-6, get: 4e-7, head: 4e-7, delete: 0 };
const SVG = 'http://www.w3.org/2000/svg';
const kept = [];
const byId = (id) => document.getElementById(id);
const number = (value) => (Number.isFinite(value) ? value : 0);
const say = (id, text) => { byId(id).textContent = text; };
const show = (id, text) => { const at = byId(id); at.hidden = !text; at.textContent = text || ''; };

function make(name, attributes, text) {
  const drawn = ['svg', 'g', 'path', 'line', 'rect', 'text', 'circle', 'title'].includes(name);
  const node = drawn ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}
function time(ms) {
  const s = ms / 1000;
  if (!s) return '0 s';
  if (s < 60) return s < 10 ? `${s.toFixed(1)} s` : `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${Math.floor(s % 60)}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${Math.floor((s % 3600) / 60)}m`;
  return `${Math.floor(s / 86400)}d${Math.floor((s % 86400) / 3600)}h`;
}
function count(value) {
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  return value < 10 && value % 1 ? value.toFixed(1) : String(Math.round(value));
}

function sampled(status) {
  const sum = { local: 0, fetched: 0, compiled: 0, saved_ms: 0 };
  const clients = Object.entries(status.clients || {}).map(([name, one]) => {
    for (const key of Object.keys(sum)) sum[key] += number(one[key]);
    return { name, local: number(one.local), fetched: number(one.fetched), compiled: number(one.compiled), saved_ms: number(one.saved_ms) };
  });
  const use = (one) => one.local + one.fetched + one.compiled;
  clients.sort((a, b) => use(b) - use(a));
  const nodes = Object.values(status.versions || {}).reduce((all, one) => all + number(one), 0);
  return { at: performance.now(), status, clients, sum, nodes, counters: status.counters || {}, requests: (status.counters || {}).requests || {} };
}

// Growth a minute between neighbours; a daemon that was restarted counts from zero. Before the first there is nothing to compare
// with, so the plot begins with the rate of the second.
function rates(read) {
  const all = kept.map((now, index) => {
    if (!index) return 0;
    const before = kept[index - 1], grown = read(now) - read(before);
    return (Math.max(0, grown) * 60000) / Math.max(1, now.at - before.at);
  });
  if (all.length > 1) all[0] = all[1];
  return all;
}

function legend(series, tell) {
  const list = make('ul', { class: 'legend' });
  series.forEach((one, index) => {
    const item = make('li'), mark = make('svg', { viewBox: '0 0 12 12', 'aria-hidden': 'true' });
    mark.append(make('rect', { x: 1, y: 1, width: 10, height: 10, rx: 2, class: `k${index % 5}` }));
    item.append(mark, make('span', {}, `${one.name}: ${tell(one.now)}`));
    list.append(item);
  });
  return list;
}

function plot(id, series, tell) {
  const place = byId(id);
  for (const one of series) one.now = one.now === undefined ? number(one.values[one.values.length - 1]) : one.now;
  if (kept.length < 2) {
    place.replaceChildren(make('p', { class: 'empty' }, 'The plot begins in a moment.'), legend(series, tell));
    return;
  }
  const width = 600, height = 150, left = 4, bottom = 16, top = 14;
  const most = Math.max(1e-9, ...series.flatMap((one) => one.values));
  const first = kept[0].at, span = Math.max(1, kept[kept.length - 1].at - first);
  const x = (at) => left + ((at - first) / span) * (width - 2 * left);
  const y = (value) => top + (1 - value / most) * (height - top - bottom);
  const now = series.map((one) => `${one.name} ${tell(one.now)}`).join(', ');
  const drawing = make('svg', { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': now });
  for (const part of [0, 0.5, 1]) drawing.append(make('line', { class: 'grid', x1: 0, x2: width, y1: y(most * part), y2: y(most * part) }));
  series.forEach((one, index) => {
    const points = one.values.map((value, at) => `${x(kept[at].at).toFixed(1)} ${y(number(value)).toFixed(1)}`);
    drawing.append(make('path', { class: `series k${index % 5}`, d: `M${points.join('L')}` }));
  });
  const scale = make('p', { class: 'note' }, `top: ${tell(most < 1e-6 ? 0 : most)} · the last ${time(span)}`);
  place.replaceChildren(drawing, scale, legend(series, tell));
}

function drawClients(now) {
  const place = byId('plot-clients');
  if (!now.clients.length) {
    place.replaceChildren(make('p', { class: 'empty' }, 'No client has used an entry yet.'));
    return;
  }
  const table = make('table'), head = make('tr'), kinds = ['local', 'fetched', 'compiled'];
  for (const name of ['client', 'served locally', 'fetched', 'compiled', 'hits', 'saved']) head.append(make('th', { scope: 'col' }, name));
  head.append(make('th', { class: 'bar', 'aria-hidden': 'true' }, ''));
  table.append(head);
  const most = Math.max(1, ...now.clients.map((one) => one.local + one.fetched + one.compiled));
  for (const one of now.clients) {
    const row = make('tr'), all = one.local + one.fetched + one.compiled;
    const hits = all ? `${Math.round(((one.local + one.fetched) / all) * 100)} %` : '–';
    row.append(make('td', {}, one.name));
    for (const text of [count(one.local), count(one.fetched), count(one.compiled), hits, time(one.saved_ms)]) row.append(make('td', {}, text));
    const bar = make('td', { class: 'bar', 'aria-hidden': 'true' }), drawing = make('svg', { viewBox: '0 0 100 12', preserveAspectRatio: 'none' });
    let from = 0;
    kinds.forEach((kind, index) => {
      const width = (one[kind] / most) * 100;
      drawing.append(make('rect', { x: from, y: 0, width, height: 12, class: `k${index}` }));
      from += width;
    });
    bar.append(drawing);
    row.append(bar);
    table.append(row);
  }
  const names = ['served locally', 'fetched', 'compiled (misses)'];
  place.replaceChildren(table, legend(kinds.map((kind, index) => ({ name: names[index], now: now.sum[kind] })), count));
}

function drawPrice(now) {
  const dollars = Object.entries(PRICES).reduce((all, [kind, price]) => all + number(now.requests[kind]) * price, 0);
  const all = Object.values(now.requests).reduce((sum, one) => sum + number(one), 0);
  say('price', now.status.remote
    ? `${count(all)} requests since the mount began: ${dollars.toFixed(dollars < 1 ? 4 : 2)} USD at the list prices of S3 Standard (5 USD for a million PUT or LIST, 0.40 USD for a million GET or HEAD).`
    : 'There is no store: requests cost nothing.');
}

function drawState(now) {
  const { status } = now, health = status.health, up = !health || health.up;
  const phases = { starting: 'starting', serving: 'serving', ending: 'draining before it ends' };
  const state = byId('state');
  state.textContent = `${up ? '' : 'store down · '}${phases[status.phase] || 'serving'}, version ${status.version || '?'}`;
  state.classList.toggle('bad', !up);
  say('point', status.mount_point || '');
  let trouble = '';
  if (!up) {
    const waiting = number((status.backlog || {}).records);
    trouble = `The store has been down for ${time(number(health.since_ms))}: ${health.last_error || 'no answer'}. Hits go on from this node; `
      + `${waiting === 1 ? '1 change waits' : `${count(waiting)} changes wait`} here and will be sent when it is back.`;
  } else if ((status.local || {}).disk_full) {
    trouble = 'The disk of the cache directory is full: entries of other nodes are misses.';
  } else if (health && health.throttled) {
    trouble = 'The store throttles: requests are answered with 429 or 503.';
  }
  show('trouble', trouble);
  show('hint', now.clients.length ? '' : `Nothing was served or compiled yet. Point a compiler's cache below ${status.mount_point || 'the mount'}, or start it by 'hearthfs run'.`);
}

function draw() {
  const now = kept[kept.length - 1], { status } = now, backlog = status.backlog || {}, local = status.local || {};
  drawState(now);
  say('local', count(now.sum.local));
  say('fetched', count(now.sum.fetched));
  say('compiled', count(now.sum.compiled));
  say('saved', time(now.sum.saved_ms));
  say('backlog', status.remote ? count(number(backlog.records)) : '–');
  say('backlog-name', status.remote ? `changes not yet in the store (${bytes(number(backlog.bytes))})` : 'no store: all is kept on this node');
  say('nodes', status.remote ? count(now.nodes) : '–');
  const of = (read) => kept.map((one) => number(read(one)));
  drawClients(now);
  plot('plot-entries', [
    { name: 'served locally', values: rates((one) => one.sum.local) },
    { name: 'fetched', values: rates((one) => one.sum.fetched) },
    { name: 'compiled', values: rates((one) => one.sum.compiled) },
  ], count);
  plot('plot-saved', [{ name: 'saved in all', values: of((one) => one.sum.saved_ms) }], time);
  plot('plot-bytes', [
    { name: 'on this node', values: of((one) => (one.status.local || {}).bytes) },
    { name: 'received from the store', values: of((one) => one.counters.fetched_bytes) },
    { name: 'sent to the store', values: of((one) => one.counters.uploaded_bytes) },
  ], bytes);
  plot('plot-backlog', [{ name: 'changes', values: of((one) => (one.status.backlog || {}).records) }], count);
  const kinds = ['put', 'get', 'list', 'head', 'delete'];
  plot('plot-requests', kinds.map((kind) => ({ name: kind.toUpperCase(), values: rates((one) => number(one.requests[kind])) })), count);
  plot('plot-nodes', [{ name: 'other nodes within a day', values: of((one) => one.nodes) }], count);
  drawPrice(now);
}

async function read() {
  try {
    const answer = await fetch('/status.json', { cache: 'no-store', signal: AbortSignal.timeout(ANSWER_MS) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    kept.push(sampled(await answer.json()));
    if (kept.length > KEPT) kept.shift();
    draw();
  } catch (error) {
    const state = byId('state');
    state.textContent = 'no answer';
    state.classList.add('bad');
    show('trouble', `The daemon does not answer (${error.message}). What is shown is from before.`);
  }
  setTimeout(read, EVERY_MS);
}
read();

// The page folds changes of the scene, and draws what differs from what it has drawn. It keeps scenes
// of earlier moments, so that going back folds few changes. Texts of things are set as text, never as
// markup.

const maxChanges = 50_000,
  maxEntries = 20_000,
  keyframeEvery = 500,
  shownEntries = 200,
  shownLater = 5,
  tilesFrom = 25, // instances are tiles with a name
  crowdFrom = 200; // and without one
const shapes = {ok: "●", busy: "◐", bad: "▲", off: "○", unknown: "?"};
const byID = (id) => document.getElementById(id);
const recorded = byID("recording"); // null on a page that is served
const server = document.querySelector("meta[name=server]"); // null on a recording
const explains = document.querySelector("meta[name=explains]") !== null;
const logs = document.querySelector("meta[name=logs]") !== null;

// The session's secret is kept for this tab and this origin, and sent in a header: never in a cookie or a URL.
// A recording has none, nor has a page that its server shows to everybody.
const sessionKey = "fakecloud-console";
const linkPattern = /^#link=([^&]+)/;
let session = recorded ? null : JSON.parse(sessionStorage.getItem(sessionKey));
let sessionEnd; // why it ended, whatever was asked then

function setSession(value) {
  session = value;
  if (value) sessionStorage.setItem(sessionKey, JSON.stringify(value));
  else sessionStorage.removeItem(sessionKey);
}

// request fetches something of this page's server, with the session's secret unless another is given.
async function request(url, options = {}, secret = session?.secret) {
  const headers = secret ? {Authorization: "Bearer " + secret} : {};
  const answer = await fetch(url, {...options, headers});
  if (answer.status === 401 && session && secret === session.secret) {
    setSession(null);
    sessionEnd = await answer.clone().text();
  }
  return answer;
}

// openLink exchanges the secret of a link, which is in the URL's fragment, for a session.
async function openLink() {
  const link = linkPattern.exec(location.hash)?.[1];
  if (!link) return true;
  window.history.replaceState(null, "", location.pathname);
  setSession(null);
  const answer = await request("session", {method: "POST"}, link);
  if (answer.ok) setSession(await answer.json());
  else lose(await answer.text());
  return answer.ok;
}

// lose tells that nothing is known from now on, why, and when the page tries again, if it does.
function lose(why, retryAt) {
  view.lost = {since: view.heard, why, retryAt};
  redraw();
}

// clockTime is a moment as HH:MM:SS.
function clockTime(at) {
  return new Date(at).toTimeString().slice(0, 8);
}

// element makes one with attributes and children; strings become text.
function element(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes)) {
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (v !== undefined && v !== false) e.setAttribute(k, v === true ? "" : v);
  }
  e.append(...children.filter((c) => c !== undefined && c !== ""));
  return e;
}

// history is all that is known of the past.
const history = {
  changes: [],
  keyframes: [],
  latest: new Map(),
  entries: [],
  reset() {
    this.changes = [];
    this.keyframes = [];
    this.latest = new Map();
  },
  addChange(c) {
    c.at = Math.max(Date.parse(c.time), this.changes.at(-1)?.at ?? 0);
    if (this.changes.length % keyframeEvery === 0)
      this.keyframes.push({index: this.changes.length, at: c.at, scene: new Map(this.latest)});
    this.changes.push(c);
    fold(this.latest, c);
    if (this.changes.length > maxChanges) this.dropOldest();
  },
  dropOldest() {
    const n = maxChanges / 2;
    this.changes.splice(0, n);
    this.keyframes = this.keyframes.filter((k) => k.index >= n).map((k) => ({...k, index: k.index - n}));
  },
  // sceneAt is the scene as of a time.
  sceneAt(time) {
    let from = this.keyframes[0];
    for (const k of this.keyframes) if (k.at <= time) from = k;
    const scene = new Map(from?.scene);
    for (let i = from?.index ?? 0; i < this.changes.length && this.changes[i].at <= time; i++)
      fold(scene, this.changes[i]);
    return scene;
  },
  addEntry(e) {
    e.at = Date.parse(e.time);
    const all = this.entries;
    let i = all.length;
    while (i > 0 && all[i - 1].at > e.at) i--;
    all.splice(i, 0, e);
    if (all.length > maxEntries) all.splice(0, all.length - maxEntries);
  },
  begin() {
    return this.changes[0]?.at ?? this.entries[0]?.at ?? Date.now();
  },
};

function fold(scene, c) {
  if (c.thing) scene.set(c.thing.id, c.thing);
  if (c.gone) scene.delete(c.gone);
}

// view is what the page shows.
const view = {
  time: null /* null: now */,
  playing: false,
  selected: location.hash.startsWith("#thing=") ? decodeURIComponent(location.hash.slice(7).split("&")[0]) : "",
  end: Date.now(),
  why: new Map(),
  acts: new Map(),
  open: new Set(["facts"]) /* the parts of the details that are open */,
  filter: [] /* words */,
  dirty: true,
  storyDirty: true,
  marksDirty: true,
  heard: null /* when the server sent its last message, by its clock */,
  lost: recorded ? null : {why: "The page is loading."},
  note: recorded ? "a recording" : "",
};
const now = () => view.time ?? view.end;
// whole stands for all of it, where nothing is selected.
const whole = {id: "", kind: "whole"};

function redraw() {
  view.dirty = true;
  scheduleFrame();
}

function redrawStory() {
  view.storyDirty = true;
  scheduleFrame();
}

// redrawEntries draws a story of which other entries are shown than before.
function redrawEntries() {
  view.marksDirty = true;
  redrawStory();
}

const sourcesOf = (scene) => [...scene.values()].filter((t) => t.unknown);

// lastKnown is a thing of which only is known how it was at a time.
function lastKnown(t, at) {
  const links = t.links?.map((l) => ({
    to: l.to,
    level: l.level && "unknown",
    state: l.state && "last known " + l.state,
  }));
  const state = `unknown, last known ${t.state} at ${clockTime(at)}`;
  return {...t, links, state, level: "unknown"};
}

// knownScene is the scene as far as it is known: things of a source that does not answer, and all things while
// nothing comes from the page's server, are as they were last known.
function knownScene(scene) {
  const lost = view.time === null ? view.lost : null;
  const since = new Map(sourcesOf(scene).flatMap((s) => s.unknown.kinds.map((kind) => [kind, s.unknown.since])));
  if (!lost && !since.size) return scene;
  return new Map(
    [...scene].map(([id, t]) => {
      const at = since.get(t.kind) ?? lost?.since;
      return [id, at && !t.unknown ? lastKnown(t, at) : t];
    }),
  );
}

// countKinds says how many things there are of each kind, such as "3 instances, 1 node".
function countKinds(things) {
  const counts = new Map();
  for (const {kind} of things) if (kind !== "endpoints") counts.set(kind, (counts.get(kind) ?? 0) + 1);
  const plural = (kind) => kind + (kind.endsWith("s") ? "es" : "s");
  return [...counts].map(([kind, n]) => `${n} ${n === 1 ? kind : plural(kind)}`).join(", ");
}

const unknownBy = ({unknown}, scene) => countKinds([...scene.values()].filter((t) => unknown.kinds.includes(t.kind)));

// setText changes an element only if it says something else, so that nothing is drawn or read aloud for nothing.
function setText(id, text) {
  if (byID(id).textContent !== text) byID(id).textContent = text;
}

const capitalized = (text) => text[0].toUpperCase() + text.slice(1);

// drawStatus says what is not known now, since when, and when that is asked again.
function drawStatus() {
  const {lost} = view,
    sources = recorded ? [] : sourcesOf(history.latest);
  const isUnknown = Boolean(lost) || sources.length > 0;
  const said = sources.map(
    (s) => `Last known at ${clockTime(s.unknown.since)}: the ${s.name} ${s.state} (${s.reason}).`,
  );
  const tried = sources.map((s) => `The ${s.name} is ${s.facts.map((f) => `${f.name} ${f.value}`).join(", ")}.`);
  if (lost) {
    const since = lost.since ? `Last known at ${clockTime(lost.since)}` : "Nothing is known yet";
    said.splice(0, said.length, `${since}: ${lost.why}`);
    const renew = `If ${server.content} was started again, this opens its page: ${server.dataset.command}`;
    tried.splice(0, tried.length, lost.retryAt ? `Trying again at ${clockTime(lost.retryAt)}. ${renew}` : "");
  }
  setText("connection", isUnknown ? "? " + said.join(" ") : view.note);
  setText("retry", tried.join(" "));
  document.body.classList.toggle("partly", isUnknown);
  document.body.classList.toggle("lost", Boolean(lost));
  const title = (isUnknown ? "? " : "") + byID("whole").textContent;
  if (!recorded && document.title !== title) document.title = title;
}

// resolver finds things by their IDs and keys.
function resolver(scene) {
  const keys = new Map();
  for (const t of scene.values()) for (const k of t.keys ?? []) keys.set(k, t.id);
  return (to) => (scene.has(to) ? to : keys.get(to));
}

function thingTitle(t) {
  return `${t.kind} ${t.name}: ${t.state}${t.reason ? ". " + t.reason : ""}`;
}

// chip is a thing in the picture.
function chip(t, extra = []) {
  const selected = t.id === view.selected;
  return element(
    "div",
    {class: `thing ${t.kind} ${t.level}${view.related?.has(t.id) ? " related" : ""}`, "data-id": t.id},
    element(
      "button",
      {type: "button", title: thingTitle(t), "aria-pressed": String(selected), onclick: () => select(t.id)},
      element("span", {class: "shape", "aria-hidden": "true"}, shapes[t.level] ?? "●"),
      " ",
      t.kind === "component" ? "" : element("span", {class: "kind"}, t.kind + " "),
      element("span", {class: "name"}, t.name),
      " ",
      element("span", {class: "state"}, t.state),
    ),
    ...extra,
  );
}

// mark is a small thing that belongs to an instance.
function mark(t) {
  return element(
    "button",
    {
      type: "button",
      class: `mark ${t.level}`,
      "data-id": t.id,
      title: thingTitle(t),
      "aria-pressed": String(t.id === view.selected),
      onclick: () => select(t.id),
    },
    element("span", {class: "shape", "aria-hidden": "true"}, shapes[t.level] ?? "●"),
    ` ${t.kind} ${t.name}`,
  );
}

// taintsOf are the keys of a Node's taints, each once.
function taintsOf(t) {
  const keys = (t.facts ?? []).filter((f) => f.name === "taint").map((f) => f.value.replace(/:[^:]*$/, ""));
  return [...new Set(keys)];
}

function factsOf(t, ...names) {
  return (t.facts ?? [])
    .filter((f) => names.includes(f.name))
    .map((f) => element("span", {class: "fact"}, f.value));
}

function nodeChip(node, pods) {
  return chip(node, [
    ...taintsOf(node).map((key) =>
      element("span", {class: "taint", title: key}, "taint ", key.replace(/^.*\//, "")),
    ),
    element(
      "div",
      {class: "pods"},
      pods.length ? element("span", {class: "kind"}, "pods ") : "",
      ...pods.map((p) =>
        element(
          "button",
          {
            type: "button",
            class: `pod ${p.level}`,
            "data-id": p.id,
            title: thingTitle(p),
            "aria-label": thingTitle(p),
            "aria-pressed": String(p.id === view.selected),
            onclick: () => select(p.id),
          },
          shapes[p.level] ?? "●",
        ),
      ),
    ),
  ]);
}

// fill puts elements into a parent, and leaves those that are equal, so that a focus stays where it is.
function fill(parent, elements) {
  elements.forEach((e, i) => {
    const old = parent.children[i];
    if (!old) parent.append(e);
    else if (!old.isEqualNode(e)) {
      const focused = old.contains(document.activeElement)
        ? document.activeElement.closest("[data-id]")?.dataset.id
        : undefined;
      old.replaceWith(e);
      if (focused) {
        const again = e.dataset.id === focused ? e : e.querySelector(`[data-id="${CSS.escape(focused)}"]`);
        (again?.matches("button") ? again : again?.querySelector("button"))?.focus();
      }
    }
  });
  while (parent.children.length > elements.length) parent.lastChild.remove();
}

const manyChips = 12;

// fillBand shows a row of the picture, if there is anything in it.
function fillBand(id, chips) {
  byID(id).hidden = chips.length === 0;
  byID(id).classList.toggle("many", chips.length >= manyChips);
  fill(document.querySelector(`#${id} .things`), chips);
}

// isFiltered tells whether the filter leaves a thing out: each of its words is in the thing's kind, name, namespace,
// zone or state, or is how well it is.
function isFiltered(t) {
  if (!view.filter.length) return false;
  const {namespace = ""} = Object.fromEntries((t.facts ?? []).map((f) => [f.name, f.value]));
  const text = `${t.kind} ${t.name} ${namespace} ${t.zone ?? ""} ${t.state} ${t.level}`.toLowerCase();
  return view.filter.some((word) => !text.includes(word));
}

function draw() {
  const scene = knownScene(view.time === null ? history.latest : history.sceneAt(view.time));
  const find = resolver(scene);
  const of = (kind) =>
    [...scene.values()]
      .filter((t) => t.kind === kind)
      .sort((a, b) => a.name.localeCompare(b.name, undefined, {numeric: true}));
  const flow = flowOf(scene, find);
  view.related = flow.isCrowded && scene.has(view.selected) ? flow.related(view.selected) : null;
  byID("board").classList.toggle("focus", view.related !== null);

  drawStrip("components", "Components", [...of("source"), ...of("component"), ...of("lease")]);
  drawStrip("faults", "Faults in force", of("fault"), "applies to");
  fillBand(
    "services",
    of("service")
      .filter((t) => !isFiltered(t))
      .map((t) => chip(t, factsOf(t, "address"))),
  );
  fillBand(
    "balancers",
    [...of("balancer"), ...of("address").filter((a) => !find(a.links?.[0]?.to)), ...of("certificate")]
      .filter((t) => !isFiltered(t))
      .map((t) => chip(t, [...factsOf(t, "address", "listener", "expires"), ...illTargets(t)])),
  );
  drawMachines(of, find);
  drawLines(flow);
  drawAttention(scene);
  drawDetails(scene, find);
  if (byID("table").open) drawTable(scene);
}

const illLinks = (t) => (t.links ?? []).filter((l) => l.level === "bad");

// illTargets says how many of a balancer's targets are.
function illTargets(t) {
  const ill = illLinks(t).length;
  return ill ? [element("span", {class: "fact bad"}, `▲ ${ill} of ${t.links.length} targets ill`)] : [];
}

// drawStrip shows things in one line that opens.
function drawStrip(id, title, things, ...facts) {
  byID(id).hidden = things.length === 0;
  const said = things.filter((t) => t.kind !== "lease" && (t.kind !== "source" || t.unknown));
  fill(byID(id).querySelector("summary"), [
    element("b", {}, title),
    ...said.map((t) =>
      element(
        "span",
        {class: t.level},
        element("span", {class: "shape"}, shapes[t.level] ?? "●"),
        ` ${t.name}${t.level === "ok" ? "" : " " + t.state}`,
      ),
    ),
  ]);
  fill(
    byID(id).querySelector(".things"),
    things.map((t) => chip(t, factsOf(t, ...facts))),
  );
}

// drawMachines shows the instances by zone: each with its Node, pods, routes, addresses and firewalls.
function drawMachines(of, find) {
  const podsOf = new Map(),
    nodesOf = new Map(),
    marksOf = new Map(),
    zones = new Map();
  for (const p of of("pod")) push(podsOf, find(p.links?.[0]?.to) ?? "", p);
  for (const t of [...of("route"), ...of("address"), ...of("firewall")])
    for (const l of t.links ?? []) if (find(l.to)) push(marksOf, find(l.to), t);
  for (const n of of("node")) push(nodesOf, find(n.links?.[0]?.to) ?? find("instance/" + n.name) ?? "", n);
  const instances = of("instance");
  const add = (machine, first, nodes) => {
    const pods = nodes.flatMap((n) => podsOf.get(n.id) ?? []);
    if ([machine, ...nodes, ...pods].every((t) => !t || isFiltered(t))) return;
    push(
      zones,
      (machine ?? nodes[0]).zone || "no zone",
      element(
        "div",
        {class: "machine", "data-machine": machine?.id},
        ...first,
        ...nodes.map((n) => nodeChip(n, podsOf.get(n.id) ?? [])),
      ),
    );
  };
  for (const i of instances)
    add(i, [chip(i), ...(marksOf.get(i.id) ?? []).map(mark)], nodesOf.get(i.id) ?? []);
  for (const n of nodesOf.get("") ?? []) add(undefined, ["no instance"], [n]);
  byID("machines").classList.toggle("map", instances.length >= tilesFrom);
  byID("machines").classList.toggle("crowd", instances.length >= crowdFrom);
  const asOf = instances.some((i) => i.level === "unknown") ? ", last known" : "";
  fill(
    byID("zones"),
    [...zones]
      .sort(([a], [b]) => a.localeCompare(b))
      .map(([zone, machines]) =>
        element(
          "div",
          {class: "zone"},
          element("h3", {}, instances.length >= tilesFrom ? `${zone}: ${machines.length} instances${asOf}` : zone),
          element("div", {class: "machines"}, ...machines),
        ),
      ),
  );
  fillBand(
    "pending",
    (podsOf.get("") ?? [])
      .filter((p) => p.level !== "off" && !isFiltered(p))
      .map((p) => chip(p, [element("span", {class: "reason"}, p.reason ?? "")])),
  );
}

function drawTable(scene) {
  fill(
    byID("table").querySelector("tbody"),
    [...scene.values()]
      .filter((t) => !isFiltered(t))
      .sort((a, b) => a.id.localeCompare(b.id))
      .map((t) =>
        element("tr", {}, ...[t.kind, t.name, t.zone ?? "", t.state, t.reason ?? ""].map((v) => element("td", {}, v))),
      ),
  );
}

function push(map, key, value) {
  if (!map.has(key)) map.set(key, []);
  map.get(key).push(value);
}

const elementOf = (id) =>
  document.querySelector(`#picture [data-machine="${CSS.escape(id)}"], #picture [data-id="${CSS.escape(id)}"]`);

// endpointsOf are the pairs of a Service and a pod behind it that are in the picture.
const endpointsOf = (scene, find) =>
  [...scene.values()]
    .filter((t) => t.kind === "endpoints")
    .flatMap(({links: [to, ...pods]}) =>
      pods.map((link) => ({service: find(to.to), pod: find(link.to), link})).filter((e) => e.service && e.pod),
    );

// svgPath makes a line of a drawing.
function svgPath(d, style) {
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", d);
  path.setAttribute("class", style);
  return path;
}

// fewLines is how many lines can be told apart. Where there are more, those of the selected thing alone are drawn, and
// what they do not lead to is dimmed. Lines from Services to pods cross everything, so there may be fewer of them.
const fewLines = 40,
  fewEndpoints = 12;

// flowOf is what leads to what, as traffic flows: from Services by balancers to instances, and by them to Nodes and pods.
function flowOf(scene, find) {
  const lines = [],
    endpoints = [],
    down = new Map(),
    up = new Map();
  const lead = (from, to) => {
    push(down, from, to);
    push(up, to, from);
  };
  for (const t of scene.values())
    for (const l of t.links ?? []) {
      const to = find(l.to);
      if (!to || t.kind === "endpoints") continue;
      if (t.kind !== "service" && t.kind !== "balancer") lead(to, t.id);
      else if (!down.get(t.id)?.includes(to)) {
        lead(t.id, to);
        const style = t.level === "unknown" ? "unknown" : (l.level ?? (t.kind === "balancer" ? "off" : "ok"));
        lines.push({from: t.id, to, link: l, style});
      }
    }
  for (const {service, pod, link} of endpointsOf(scene, find)) {
    lead(service, pod);
    endpoints.push({from: service, to: pod, link, style: `endpoint ${link.level === "ok" ? "" : link.level}`});
  }
  const reach = (from, next, found) => {
    for (const to of next.get(from) ?? [])
      if (!found.has(to)) {
        found.add(to);
        reach(to, next, found);
      }
  };
  return {
    lines,
    endpoints,
    isCrowded: lines.length > fewLines,
    related(id) {
      const above = new Set([id]),
        below = new Set([id]);
      reach(id, up, above);
      reach(id, down, below);
      return above.union(below);
    },
  };
}

// drawLines draws what leads where.
function drawLines({lines, endpoints, isCrowded}) {
  const svg = byID("lines"),
    origin = svg.getBoundingClientRect(),
    paths = [];
  const isOfSelected = ({from, to}) => view.selected === from || view.selected === to;
  const isShown = (line) =>
    isCrowded ? view.related?.has(line.from) && view.related.has(line.to) : !view.filter.length || elementOf(line.to);
  const shown = [
    ...lines.filter(isShown),
    ...endpoints.filter((e) => isOfSelected(e) || (endpoints.length <= fewEndpoints && !isCrowded)),
  ];
  for (const {from, to, link, style} of shown) {
    const a = elementOf(from)?.getBoundingClientRect(),
      b = elementOf(to)?.getBoundingClientRect();
    if (!a?.width || !b?.width) continue;
    const x1 = Math.round(a.right - origin.left),
      y1 = Math.round(a.top + a.height / 2 - origin.top),
      x2 = Math.round(b.left - origin.left),
      y2 = Math.round(b.top + Math.min(b.height / 2, 16) - origin.top),
      middle = (x1 + x2) / 2;
    const speed = link.bytesPerSecond ?? 0,
      flows = speed > 0 || (link.connections ?? 0) > 0;
    const width = Math.min(5, 1 + Math.round(Math.log10(1 + speed) / 1.5));
    const curve = `M${x1},${y1} C${middle},${y1} ${middle},${y2} ${x2},${y2}`;
    paths.push(svgPath(curve, `${style}${flows ? " flows w" + width : ""}`));
    if (style === "bad") paths.push(svgPath(`M${x2 - 9},${y2 - 5} L${x2 - 1},${y2} L${x2 - 9},${y2 + 5} Z`, "bad end"));
  }
  const board = byID("board");
  svg.setAttribute("width", board.clientWidth);
  svg.setAttribute("height", board.clientHeight);
  fill(svg, paths);
}

// problemOf is what a person should know of a thing that is not as it should be; undefined if it is. What
// may be the cause of others comes first.
function problemOf(t, scene) {
  if (t.unknown) {
    const text = `${t.reason}. Last known at ${clockTime(t.unknown.since)}: ${unknownBy(t, scene)}.`;
    return {urgency: 0, level: "unknown", text};
  }
  if (t.kind === "component" && t.level !== "ok")
    return {urgency: 0, level: t.level, style: "bad", text: t.reason ?? ""};
  if (t.level === "bad") return {urgency: 1, level: "bad", text: t.reason ?? ""};
  const ill = illLinks(t);
  if (ill.length)
    return {urgency: 1, level: "bad", text: `${ill.length} of ${t.links.length} targets: ${ill[0].state}`};
  if (t.level === "busy" && t.reason) return {urgency: 2, level: "busy", text: t.reason};
  if (t.level === "off" && t.kind !== "pod") return {urgency: 3, level: "off", text: t.reason ?? ""};
}

const shownProblems = 6;

// drawAttention tells what is not as it should be; things in the same state for the same reason together.
function drawAttention(scene) {
  const groups = new Map();
  for (const t of scene.values()) {
    const problem = problemOf(t, scene);
    if (problem) push(groups, JSON.stringify([t.kind, t.state, problem.text]), {t, ...problem});
  }
  const look = [...groups.values()].sort(([a], [b]) => a.urgency - b.urgency);
  const shown = look.slice(0, shownProblems).map((group) => {
    const [{t, level, style, text}] = group;
    const who = group.length === 1 ? `${t.kind} ${t.name}` : `${group.length} ${t.kind}s`;
    return element(
      "button",
      {type: "button", class: style ?? level, onclick: () => select(t.id)},
      `${shapes[level]} ${who}: ${t.state}`,
      text ? element("small", {}, ": " + text) : "",
    );
  });
  if (look.length > shownProblems) shown.push(element("span", {}, `and ${look.length - shownProblems} more`));
  if (view.lost && view.time === null)
    shown.unshift(element("span", {class: "unknown"}, `? unknown now: ${countKinds(scene.values()) || "everything"}`));
  else if (scene.size === 0) shown.push(element("span", {}, "○ nothing is here"));
  else if (look.length === 0) shown.push(element("span", {class: "ok"}, "● all is well"));
  fill(byID("attention"), shown);
}

// part is a section of the details that opens, and stays as it was left.
function part(name, title, ...children) {
  const toggled = (ev) => {
    if (ev.target.open) view.open.add(name);
    else view.open.delete(name);
    redraw();
  };
  const isOpen = view.open.has(name);
  return element("details", {open: isOpen, "data-part": name, ontoggle: toggled}, element("summary", {}, title), ...(isOpen ? children : []));
}

function drawDetails(scene, find) {
  const t = scene.get(view.selected);
  if (!t) {
    if (!view.selected) ask(whole);
    fill(byID("details"), [
      element(
        "p",
        {class: "none"},
        view.selected
          ? `${view.selected} is not there at this time.`
          : "Choose a thing in the picture, or a line of the story.",
      ),
      ...(view.selected ? [] : actions(whole)),
    ]);
    return;
  }
  ask(history.latest.get(t.id));
  const why = view.time === null ? view.why.get(t.id) : undefined;
  fill(byID("details"), [
    element(
      "h2",
      {},
      element("span", {class: t.level, "aria-hidden": "true"}, shapes[t.level] + " "),
      `${t.kind} ${t.name}`,
    ),
    element("p", {}, t.state, t.reason ? ". " + t.reason : ""),
    ...(why ? explanation(why) : []),
    ...actions(t),
    ...callsAbout(t),
    ...logAbout(t),
    part("facts", "Facts", facts(t), ...linksOf(t, scene, find)),
  ]);
}

function facts(t) {
  const all = (t.zone ? [{name: "zone", value: t.zone}] : []).concat(t.facts ?? []);
  return element("dl", {}, ...all.flatMap((f) => [element("dt", {}, f.name), element("dd", {}, f.value)]));
}

// linksOf lists what a thing leads to.
function linksOf(t, scene, find) {
  const pods = endpointsOf(scene, find).filter((e) => e.service === t.id);
  const links = [...(t.links ?? []), ...pods.map((e) => e.link)]
    .map((l) => ({...l, id: find(l.to)}))
    .filter((l, i, all) => l.id && all.findIndex((o) => o.id === l.id) === i);
  if (!links.length) return [];
  const line = (l) =>
    element(
      "li",
      {},
      element("button", {type: "button", onclick: () => select(l.id)}, l.id),
      " ",
      l.state ?? "",
      l.connections ? `, ${l.connections} connections` : "",
      l.bytesPerSecond ? `, ${formatBytes(l.bytesPerSecond)} a second` : "",
    );
  return [element("ul", {class: "links"}, ...links.map(line))];
}

const shownCalls = 20;

// callsAbout are the calls of the cloud's API about a thing, the newest first.
function callsAbout(t) {
  const all = history.entries.filter((e) => e.call && e.subject === t.id && e.at <= now()).reverse();
  if (!all.length) return [];
  const failed = all.filter((e) => e.failed).length;
  const line = (e) =>
    element("li", {class: e.failed && "bad"}, `${e.seconds.toFixed(2)} ${e.caller ?? ""} ${e.what} ${e.detail ?? ""}`);
  return [
    part(
      "calls",
      `Calls about it: ${all.length}${failed ? `, ${failed} failed` : ""}`,
      element("ol", {class: "calls"}, ...all.slice(0, shownCalls).map(line)),
    ),
  ];
}

const logInterval = 5000;

// logAbout are the lines of the CCM's log about a thing, the newest first, as long as they are looked at.
function logAbout(t) {
  if (!logs || view.time !== null) return [];
  const isOpen = view.open.has("log");
  if (isOpen && !view.lost && (view.log?.id !== t.id || Date.now() - view.log.at > logInterval)) {
    view.log = {id: t.id, at: Date.now(), lines: view.log?.id === t.id ? view.log.lines : undefined};
    fetchJSON("log.json?subject=" + encodeURIComponent(t.id)).then((answer) => {
      if (view.log.id === t.id) view.log.lines = Array.isArray(answer) ? answer : ["▲ " + answer.error];
      redraw();
      setTimeout(redraw, logInterval);
    });
  }
  const lines = view.log?.id === t.id ? (view.log.lines ?? ["◐ reading"]) : [];
  const said = lines.length ? lines : ["It says nothing about it."];
  return [part("log", "The CCM's log about it", element("ol", {class: "log"}, ...said.map((l) => element("li", {}, l))))];
}

function formatBytes(n) {
  return n < 10_000 ? `${n} bytes` : n < 10_000_000 ? `${Math.round(n / 1000)} kB` : `${Math.round(n / 1e6)} MB`;
}

function explanation(x) {
  if (x.error) return [element("p", {class: "bad"}, x.error)];
  return [
    element("h3", {}, view.lost && x.asOf ? `Why, as of ${clockTime(x.asOf)}` : "Why"),
    element("p", {}, x.verdict),
    element("ul", {}, ...(x.because ?? []).map((f) => element("li", {}, element("b", {}, f.where), ": ", f.what))),
    ...(x.next?.length ? [element("h3", {}, "What next")] : []),
    ...(x.next ?? []).map((s) =>
      element(
        "p",
        {},
        s.do,
        s.command ? element("code", {}, s.command) : "",
        s.command ? copyButton(() => s.command) : "",
      ),
    ),
  ];
}

// select shows a thing's details.
function select(id) {
  view.selected = id;
  byID("own").disabled = id === "";
  view.marksDirty ||= byID("own").checked;
  view.done = "";
  view.asked = undefined;
  view.askedAt = 0;
  const moment = view.time === null ? "" : "&at=" + new Date(view.time).toISOString();
  window.history.replaceState(null, "", `#thing=${encodeURIComponent(id)}${moment}`);
  redraw();
  redrawStory();
}

// isNamed tells whether an explanation names what has changed, or what that leads to. Whether a source answers is a
// part of each.
function isNamed(why, {thing, gone}) {
  if ((thing?.id ?? gone).startsWith("source/") || thing?.links?.some((l) => l.to === why.subject)) return true;
  const names = thing ? [thing.name, thing.cloudId] : [gone.slice(gone.lastIndexOf("/") + 1)];
  return names.some((name) => name && why.text.includes(name));
}

// isOutdated tells whether something has changed of what an explanation names since its working out began.
function isOutdated(why) {
  if (!why?.asOf || why.outdated) return Boolean(why?.outdated);
  const all = history.changes;
  for (let i = all.length - 1; i >= 0 && all[i].at >= why.checked; i--) why.outdated ||= isNamed(why, all[i]);
  why.checked = Math.max(why.checked, all.at(-1)?.at ?? 0);
  return Boolean(why.outdated);
}

const isAsked = (t) => view.asked === t && !(t && isOutdated(view.why.get(t.id)));

// ask asks why the selected thing is as it is, and what can be done with it: once for each of its states and of those
// that the answer names, and not too often.
async function ask(t) {
  if (recorded || view.lost || view.time !== null || !t || isAsked(t)) return;
  if (Date.now() - (view.askedAt ?? 0) < 1000) return;
  view.asked = t;
  view.askedAt = Date.now();
  const of = "?subject=" + encodeURIComponent(t.id);
  if (explains && (t.kind === "node" || t.kind === "service")) {
    const why = await fetchJSON("explain.json" + of);
    Object.assign(why, {subject: t.id, text: JSON.stringify([t.name, why]), checked: why.asOf});
    view.why.set(t.id, why);
    if (why.later) setTimeout(askAgain, explainRest, t);
  }
  if (session?.changes) view.acts.set(t.id, await fetchJSON("acts.json" + of));
  redraw();
}

// explainRest is how long the page waits when its server explains too much for others.
const explainRest = 2000;

function askAgain(t) {
  if (view.asked === t) view.asked = undefined;
  redraw();
}

async function fetchJSON(url, options) {
  try {
    const answer = await request(url, options);
    const isJSON = answer.headers.get("Content-Type") === "application/json";
    const body = isJSON ? await answer.json() : {error: await answer.text()};
    const asOf = answer.headers.get("As-Of");
    if (asOf) body.asOf = Date.parse(asOf);
    return answer.status === 429 ? {...body, later: true} : body;
  } catch (err) {
    return {error: String(err)};
  }
}

// quote writes a word of a command as a shell takes it.
function quote(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

// actions are buttons that do something with a thing, each with the command that does the same. The
// elements are made once for what can be done, so that what is chosen in them stays.
function actions(t) {
  const acts = view.acts.get(t.id);
  if (!Array.isArray(acts) || acts.length === 0 || view.time !== null) return [];
  const key = JSON.stringify([t.id, acts, view.open.has("do")]);
  if (view.actsKey !== key) {
    view.actsKey = key;
    const title = t === whole ? "Do something with all of it" : "Do something with it";
    view.actsElement = part("do", title, ...acts.map((a) => action(t, a)));
  }
  return [view.actsElement, element("p", {role: "status"}, view.done ?? "")];
}

function action(t, a) {
  const inputs = (a.inputs ?? []).map((i) =>
    i.options
      ? element("select", {"aria-label": i.label}, ...i.options.map((o) => element("option", {}, o.label)))
      : element("input", {type: "text", "aria-label": i.label, value: i.text, maxlength: 1000}),
  );
  const code = element("code", {});
  const words = () => [
    ...a.command,
    ...inputs.flatMap((e, i) =>
      a.inputs[i].options ? (a.inputs[i].options[e.selectedIndex].args ?? []) : [e.value],
    ),
  ];
  const show = () => (code.textContent = words().map(quote).join(" "));
  show();
  for (const e of inputs) e.addEventListener("input", show);
  const act = () =>
    perform(
      t,
      a,
      inputs.map((e) => e.value),
      code.textContent,
    );
  return element(
    "div",
    {class: "act"},
    element("button", {type: "button", "data-verb": a.verb, onclick: a.final ? askFirst(act) : act}, a.verb),
    ...inputs,
    code,
    copyButton(() => code.textContent),
  );
}

// askFirst makes a button act only when it is pressed a second time, soon after the first.
function askFirst(act) {
  return ({target}) => {
    if (target.classList.contains("sure")) return act();
    const verb = target.textContent;
    target.classList.add("sure");
    target.textContent = `really ${verb}?`;
    setTimeout(() => {
      target.classList.remove("sure");
      target.textContent = verb;
    }, 5000);
  };
}

function copyButton(text) {
  const copy = () => navigator.clipboard?.writeText(text());
  return element("button", {type: "button", class: "copy", "aria-label": `copy ${text()}`, onclick: copy}, "copy");
}

async function perform(t, a, inputs, command) {
  view.done = "◐ " + command;
  redraw();
  const query = new URLSearchParams([["subject", t.id], ["verb", a.verb], ...inputs.map((i) => ["input", i])]);
  const answer = await fetchJSON("acts.json?" + query, {method: "POST"});
  view.done = answer.error ? "▲ " + answer.error : "● done: " + command;
  view.asked = undefined;
  redraw();
}

const guideInterval = 2000,
  guideRest = 30_000;

// followGuide shows the lesson beside the picture, and looks less often where there is none.
async function followGuide() {
  const guide = await fetchJSON("guide.json");
  if (guide?.tasks || guide === null) drawGuide(guide);
  setTimeout(followGuide, guide?.tasks ? guideInterval : guideRest);
}

// parsed makes elements of HTML that the server itself has made, and of no stranger's text.
function parsed(html) {
  const {body} = new DOMParser().parseFromString(html ?? "", "text/html");
  for (const e of body.querySelectorAll("[style]")) {
    const css = e.getAttribute("style"); // The page's policy lets only a script set it.
    e.removeAttribute("style");
    e.style.cssText = css;
  }
  return [...body.childNodes];
}

function drawGuide(guide) {
  byID("guide").hidden = guide === null;
  if (guide === null) return;
  // What the reader has opened or closed stays so until the lesson goes on.
  const key = JSON.stringify(guide);
  if (view.guideKey === key) return;
  view.guideKey = key;
  const tasks = guide.tasks.map((t) =>
    element(
      "li",
      {class: t.done ? "done" : t.current ? "current" : "later"},
      element(
        "details",
        {open: t.current},
        element("summary", {}, `${t.done ? "✓ done: " : t.current ? "▶ " : ""}${t.title}`),
        ...parsed(t.do),
        t.seen ? element("p", {class: "seen"}, t.seen) : "",
        t.current && guide.problem ? element("p", {class: "seen"}, "not yet: " + guide.problem) : "",
      ),
    ),
  );
  byID("guide").replaceChildren(
    element("h2", {}, guide.title),
    element(
      "details",
      {open: guide.tasks[0]?.current},
      element("summary", {}, "What this is about"),
      ...parsed(guide.opening),
    ),
    element("ol", {}, ...tasks),
  );
}

// isShown tells whether an entry passes the filters.
function isShown(e) {
  const search = byID("search").value.toLowerCase();
  if (byID("failed").checked && !e.failed) return false;
  if (view.selected && byID("own").checked && e.subject !== view.selected) return false;
  const isRead = e.call && (e.call.method === "GET" || e.call.method === "HEAD");
  if (isRead && !e.failed && !byID("reads").checked) return false;
  const text = `${e.source} ${e.subject} ${e.what} ${e.detail ?? ""} ${e.caller ?? ""}`;
  return text.toLowerCase().includes(search);
}

// drawStory shows the entries around the time that is shown, the newest first.
function drawStory() {
  const all = history.entries;
  let next = all.length; // The first entry that is later.
  while (next > 0 && all[next - 1].at > now()) next--;
  const later = [];
  for (let i = next; i < all.length && later.length < shownLater; i++) if (isShown(all[i])) later.unshift(all[i]);
  const shown = [];
  for (let i = next - 1; i >= 0 && shown.length < shownEntries; i--) if (isShown(all[i])) shown.push(all[i]);
  const moment = later.length
    ? [element("li", {class: "moment"}, "▲ later than the picture, ▼ until then, the newest first")]
    : [];
  fill(byID("entries"), [
    ...later.map((e) => storyLine(e, " later")),
    ...moment,
    ...shown.map((e) => storyLine(e, "")),
  ]);
  if (view.marksDirty) drawMarks();
  if (byID("cost").open) drawCost();
}

// happenings are the entries of the story other than calls, those of one moment as one.
function happenings() {
  const all = [];
  for (const e of history.entries) {
    if (e.call || !isShown(e)) continue;
    const last = all.at(-1);
    if (last && e.at - last.at < 250) last.failed ||= e.failed;
    else all.push({at: e.at, failed: e.failed});
  }
  return all;
}

// drawMarks marks on the slider where something happened, in milliseconds since the begin: the clock moves them as time
// goes on.
function drawMarks() {
  view.marksDirty = false;
  const begin = history.begin(),
    apart = Math.max(1, (view.end - begin) / 500),
    marks = {"": new Set(), bad: new Set()};
  for (const h of happenings()) marks[h.failed ? "bad" : ""].add(Math.round(Math.round((h.at - begin) / apart) * apart));
  fill(
    byID("marks"),
    Object.entries(marks).map(([style, places]) => svgPath([...places].map((x) => `M${x},0 V12`).join(" "), style)),
  );
}

// step goes to the next happening, or with -1 to the previous one.
function step(direction) {
  const at = now(),
    all = happenings().map((h) => h.at);
  const to = direction > 0 ? all.find((h) => h > at) : all.findLast((h) => h < at);
  if (to !== undefined) goTo(to);
  else if (direction > 0) goLive();
}

function storyLine(e, when) {
  const classes = `${e.source}${e.failed ? " bad" : ""}${e.subject === view.selected ? " selected" : ""}${when}`;
  const time = {type: "button", class: "time", title: "go to this moment", onclick: () => goTo(e.at)};
  return element(
    "li",
    {class: classes},
    element("button", time, e.seconds.toFixed(2)),
    " ",
    element("button", {type: "button", class: "subject", onclick: () => select(e.subject)}, e.subject),
    " ",
    element("b", {}, e.call ? (e.caller ?? "") : e.what),
    " ",
    element("span", {}, e.detail ?? ""),
  );
}

// controllerOf is which of a CCM's controllers makes such calls.
function controllerOf(call) {
  if (/^.v1.(load-balancers|addresses|firewalls)/.test(call.path)) return "service";
  if (/^.v1.routes/.test(call.path)) return "route";
  return /^.v1.instances/.test(call.path) ? "node" : "";
}

// drawCost counts the calls of the minute before the time that is shown.
function drawCost() {
  const rows = new Map(),
    callers = new Map();
  for (let i = history.entries.length - 1; i >= 0 && history.entries[i].at > now() - 60_000; i--) {
    const e = history.entries[i];
    if (!e.call || e.at > now()) continue;
    const who = [e.caller ?? "", controllerOf(e.call), e.what];
    const key = who.join("\n");
    const row = rows.get(key) ?? {who, calls: 0, failed: 0};
    row.calls++;
    row.failed += e.failed ? 1 : 0;
    rows.set(key, row);
    callers.set(who[0], (callers.get(who[0]) ?? 0) + 1);
  }
  const limit = view.limit ? `each may make ${view.limit * 60}` : "no limit is set";
  const counted = [...callers].map(([c, n]) => `${c} ${n}`).join(", ") || "none";
  byID("limit").textContent = `The minute until ${clockTime(now())}: ${counted}; ${limit}. ${view.budget ?? ""}`;
  fill(
    byID("cost").querySelector("tbody"),
    [...rows.values()]
      .sort((a, b) => b.calls - a.calls)
      .map(({who, calls, failed}) =>
        element("tr", {}, ...[...who, calls, failed].map((v) => element("td", {}, String(v)))),
      ),
  );
}

// pulse shows a call of the cloud for a moment, on the thing that it is about.
function pulse(e) {
  if (!e.call || view.time !== null) return;
  const target = elementOf(e.subject) ?? elementOf("component/fakecloud");
  target?.classList.add(e.failed ? "called-bad" : "called");
  setTimeout(() => target?.classList.remove("called", "called-bad"), 600);
}

function goTo(time) {
  view.time = Math.min(Math.max(time, history.begin()), view.end);
  view.playing = false;
  redraw();
  redrawStory();
}

function goLive() {
  view.time = null;
  view.playing = false;
  redraw();
  redrawStory();
}

function drawClock() {
  const begin = history.begin(),
    span = Math.max(1, view.end - begin);
  if (document.activeElement !== byID("slider") || view.time === null || view.playing)
    byID("slider").value = String(Math.round(((now() - begin) / span) * 1000));
  byID("marks").setAttribute("viewBox", `0 0 ${span} 12`);
  const [first] = history.entries; // It tells when the story began to be counted.
  const zero = first ? first.at - first.seconds * 1000 : begin;
  const text = `${((now() - zero) / 1000).toFixed(1)} s, ${new Date(now()).toLocaleTimeString()}`;
  const which = recorded ? ", the end" : view.lost ? ", last known" : ", now";
  const isEmpty = history.changes.length + history.entries.length === 0;
  setText("clock", isEmpty ? "nothing is known yet" : text + (view.time === null ? which : ", the past"));
  byID("slider").setAttribute("aria-valuetext", text);
  setText("play", view.time === null ? "Pause" : view.playing ? "Pause" : "Play");
  document.body.classList.toggle("past", view.time !== null);
  byID("past").hidden = view.time === null;
  const end = recorded ? "the end" : "now";
  if (view.time !== null) setText("past", `This is the past: ${clockTime(now())}, ${formatSpan(view.end - now())} before ${end}.`);
}

function formatSpan(ms) {
  const s = Math.round(ms / 1000);
  return s < 120 ? `${s} s` : s < 7200 ? `${Math.round(s / 60)} minutes` : `${Math.round(s / 3600)} hours`;
}

let lastFrame = 0,
  isFrameScheduled = false;

// scheduleFrame has what is new drawn. At rest nothing is.
function scheduleFrame() {
  if (isFrameScheduled) return;
  isFrameScheduled = true;
  requestAnimationFrame(frame);
}

function frame(at) {
  isFrameScheduled = false;
  const passed = at - lastFrame;
  if (passed < 33) return scheduleFrame(); // 30 frames a second are enough.
  lastFrame = at;
  if (view.playing && view.time !== null) {
    view.time += passed * Number(byID("speed").value);
    view.dirty = view.storyDirty = true;
    if (view.time >= view.end) goLive();
    scheduleFrame();
  }
  if (view.dirty) {
    view.dirty = false;
    drawStatus();
    draw();
    if (performance.getEntriesByName("drawn").length === 0) performance.mark("drawn");
  }
  if (view.storyDirty) {
    view.storyDirty = false;
    drawStory();
  }
  drawClock();
}

// readMessages calls receive with each message of a stream of server-sent events, until the stream ends.
async function readMessages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const messages = (text + part.value).split("\n\n");
    text = messages.pop();
    for (const m of messages) receive(JSON.parse(m.replace(/^data: /, "")));
  }
}

const shortestRetry = 500,
  longestRetry = 10_000,
  longestSilence = 5000; // The server says each second that nothing is new.

let watchdog;

// awaitMessage ends the stream if no message comes in time.
function awaitMessage(stream) {
  clearTimeout(watchdog?.timer);
  watchdog = {stream, timer: setTimeout(() => stream.abort(), longestSilence)};
}

// followStream reads the stream, and connects again when it breaks, until the session ends.
async function followStream() {
  const who = capitalized(server.content) + ", which serves this page,";
  for (let wait = shortestRetry; ; wait = Math.min(2 * wait, longestRetry)) {
    let why = "is gone: nobody answers.";
    const stream = new AbortController();
    awaitMessage(stream);
    try {
      const answer = await request("stream", {signal: stream.signal});
      if (answer.ok) {
        why = "has broken off its stream.";
        wait = shortestRetry;
        history.entries = [];
        await readMessages(answer.body);
      } else why = `refuses its stream: ${answer.status} ${await answer.text()}`;
      if (answer.status === 401) return lose(sessionEnd ?? why);
    } catch {
      // Nobody answers, or the stream broke.
    } finally {
      clearTimeout(watchdog.timer);
    }
    if (stream.signal.aborted) why = `is silent: nothing has come for ${longestSilence / 1000} s.`;
    lose(`${who} ${why}`, Date.now() + wait);
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

// start opens the link, if there is one, and follows what happens.
async function start() {
  if (!(await openLink())) return;
  view.asked = undefined; // Before there was a session, nothing was answered.
  view.askedAt = 0;
  redraw();
  followStream();
  if (document.querySelector("meta[name=guides]")) followGuide();
}

function receive(batch) {
  if (watchdog) awaitMessage(watchdog.stream);
  if (batch.reset) history.reset();
  for (const c of batch.scene ?? []) history.addChange(c);
  for (const e of batch.story ?? []) {
    history.addEntry(e);
    if (view.end - e.at < 5000) pulse(e);
  }
  view.end = view.heard = Date.parse(batch.now);
  view.limit = batch.limit ?? view.limit;
  view.budget = batch.budget ?? view.budget;
  view.note = batch.note || view.note;
  if (batch.reset || batch.story?.some(isShown)) view.storyDirty = view.marksDirty = true;
  if (batch.more) return; // Until all of it is there, it shows what was.
  const wasLost = view.lost;
  view.lost = null;
  const isStale = view.time === null && !isAsked(view.selected ? history.latest.get(view.selected) : whole);
  if (batch.scene?.length || batch.reset || batch.note || wasLost || isStale) redraw();
  view.storyDirty ||= byID("cost").open;
  scheduleFrame(); // for what is dirty, and the clock
}

byID("slider").addEventListener("input", (ev) =>
  goTo(history.begin() + ((view.end - history.begin()) * Number(ev.target.value)) / 1000),
);
byID("play").addEventListener("click", () => {
  if (view.time === null) goTo(view.end);
  else view.playing = !view.playing;
  lastFrame = performance.now();
  scheduleFrame();
});
byID("live").addEventListener("click", goLive);
byID("previous").addEventListener("click", () => step(-1));
byID("next").addEventListener("click", () => step(1));
document.addEventListener("keydown", (ev) => {
  if (ev.ctrlKey || ev.metaKey || ev.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(ev.target.tagName)) return;
  if (ev.key === "n") step(1);
  if (ev.key === "p") step(-1);
  if (ev.key === "Escape") select("");
});
byID("filter").addEventListener("input", (ev) => {
  view.filter = ev.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  redraw();
});
byID("picture").addEventListener("scroll", redraw, {passive: true}); // Columns that stay in view move their lines.
byID("components").addEventListener("toggle", redraw);
byID("faults").addEventListener("toggle", redraw);
byID("whole").addEventListener("click", () => select(""));
for (const id of ["search", "failed", "reads", "own"])
  byID(id).addEventListener("input", redrawEntries);
byID("filters").addEventListener("submit", (ev) => ev.preventDefault());
byID("cost").addEventListener("toggle", redrawStory);
byID("table").addEventListener("toggle", redraw);
new ResizeObserver(redraw).observe(byID("board"));

if (recorded) {
  const rec = JSON.parse(recorded.textContent);
  receive({...rec, reset: true, now: rec.until});
  byID("live").textContent = "End";
} else {
  // A link that is opened in this tab while the page is there.
  window.addEventListener("hashchange", () => linkPattern.test(location.hash) && location.reload());
  start().catch(() => lose("nobody answers; load the page again."));
}
const at = /[#&]at=([^&]+)/.exec(location.hash);
if (at) setTimeout(() => goTo(Date.parse(decodeURIComponent(at[1]))), recorded ? 0 : 1500);
scheduleFrame();

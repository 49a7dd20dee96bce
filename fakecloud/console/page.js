// The page folds changes of the scene, and draws what differs from what it has drawn. It keeps scenes
// of earlier moments, so that going back folds few changes. Texts of things are set as text, never as
// markup.

const maxChanges = 50_000,
  maxEntries = 20_000,
  keyframeEvery = 500,
  shownEntries = 200,
  shownLater = 5,
  mapFrom = 60;
const shapes = {ok: "●", busy: "◐", bad: "▲", off: "○", unknown: "?"};
const byID = (id) => document.getElementById(id);
const recorded = byID("recording"); // null on a page that is served
const server = document.querySelector("meta[name=server]"); // null on a recording
const explains = document.querySelector("meta[name=explains]") !== null;

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
  dirty: true,
  storyDirty: true,
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
    {class: `thing ${t.kind} ${t.level}`, "data-id": t.id},
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
    {type: "button", class: `mark ${t.level}`, "data-id": t.id, title: thingTitle(t), onclick: () => select(t.id)},
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

// fillBand shows a row of the picture, if there is anything in it.
function fillBand(id, chips) {
  byID(id).hidden = chips.length === 0;
  fill(document.querySelector(`#${id} .things`), chips);
}

function draw() {
  const scene = knownScene(view.time === null ? history.latest : history.sceneAt(view.time));
  const find = resolver(scene);
  const of = (kind) =>
    [...scene.values()]
      .filter((t) => t.kind === kind)
      .sort((a, b) => a.name.localeCompare(b.name, undefined, {numeric: true}));
  const podsOf = new Map(),
    nodesOf = new Map();
  for (const p of of("pod")) push(podsOf, find(p.links?.[0]?.to) ?? "", p);
  // What an instance has beside its Node: routes to it, addresses attached to it, firewalls of it.
  const marksOf = new Map();
  for (const t of [...of("route"), ...of("address"), ...of("firewall")])
    for (const l of t.links ?? []) if (find(l.to)) push(marksOf, find(l.to), t);
  for (const n of of("node")) push(nodesOf, find(n.links?.[0]?.to) ?? find("instance/" + n.name) ?? "", n);

  fillBand(
    "faults",
    of("fault").map((t) => chip(t, factsOf(t, "applies to"))),
  );
  fillBand(
    "cluster",
    [...of("component"), ...of("lease"), ...of("service")].map((t) => chip(t, factsOf(t, "address"))),
  );
  fillBand(
    "pending",
    (podsOf.get("") ?? [])
      .filter((p) => p.level !== "off")
      .map((p) => chip(p, [element("span", {class: "reason"}, p.reason ?? "")])),
  );
  fillBand(
    "balancers",
    [...of("balancer"), ...of("address").filter((a) => !find(a.links?.[0]?.to))].map((t) =>
      chip(t, factsOf(t, "address", "listener")),
    ),
  );

  const zones = new Map(),
    instances = of("instance"),
    isMap = instances.length >= mapFrom,
    asOf = instances.some((i) => i.level === "unknown") ? ", last known" : "";
  for (const i of instances)
    push(
      zones,
      i.zone || "no zone",
      element(
        "div",
        {class: `machine ${i.level}`, "data-machine": i.id},
        chip(i),
        ...(marksOf.get(i.id) ?? []).map(mark),
        ...(nodesOf.get(i.id) ?? []).map((n) => nodeChip(n, podsOf.get(n.id) ?? [])),
      ),
    );
  for (const n of nodesOf.get("") ?? [])
    push(
      zones,
      n.zone || "no zone",
      element("div", {class: "machine off"}, "no instance", nodeChip(n, podsOf.get(n.id) ?? [])),
    );
  byID("machines").classList.toggle("map", isMap);
  fill(
    byID("zones"),
    [...zones]
      .sort(([a], [b]) => a.localeCompare(b))
      .map(([zone, machines]) =>
        element(
          "div",
          {class: "zone"},
          element("h3", {}, isMap ? `${zone}: ${machines.length} instances${asOf}` : zone),
          element("div", {class: "machines"}, ...machines),
        ),
      ),
  );

  drawLines(scene, find, isMap);
  drawAttention(scene);
  drawDetails(scene, find);
  if (byID("table").open)
    fill(
      byID("table").querySelector("tbody"),
      [...scene.values()]
        .sort((a, b) => a.id.localeCompare(b.id))
        .map((t) =>
          element(
            "tr",
            {},
            ...[t.kind, t.name, t.zone ?? "", t.state, t.reason ?? ""].map((v) => element("td", {}, v)),
          ),
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

// The lines from Services to pods are drawn for all as long as there are so few; else for what is selected.
const fewEndpoints = 12;

// drawLines draws what belongs to what. Of a map, only the lines of the thing that is selected.
function drawLines(scene, find, isMap) {
  const svg = byID("lines"),
    origin = byID("picture").getBoundingClientRect(),
    lines = [];
  const draw = (from, l, to, style) => {
    const a = elementOf(from)?.getBoundingClientRect(),
      b = elementOf(to)?.getBoundingClientRect();
    if (!a || !b) return;
    const x1 = a.left + a.width / 2 - origin.left,
      y1 = a.bottom - origin.top,
      x2 = b.left + b.width / 2 - origin.left,
      y2 = b.top - origin.top;
    const path = document.createElementNS(svg.namespaceURI, "path");
    path.setAttribute("d", `M${x1},${y1} C${x1},${(y1 + y2) / 2} ${x2},${(y1 + y2) / 2} ${x2},${y2}`);
    const flows = (l.bytesPerSecond ?? 0) > 0 || (l.connections ?? 0) > 0;
    path.setAttribute("class", `${style}${flows ? " flows" : ""}`);
    path.setAttribute("stroke-width", String(1.5 + Math.min(5, Math.log10(1 + (l.bytesPerSecond ?? 0)))));
    lines.push(path);
  };
  svg.setAttribute("width", origin.width);
  svg.setAttribute("height", origin.height);
  for (const t of scene.values()) {
    if (t.kind !== "service" && t.kind !== "balancer") continue;
    const drawn = new Set();
    for (const l of t.links ?? []) {
      const to = find(l.to);
      if (!to || drawn.has(to) || (isMap && view.selected !== t.id && view.selected !== to)) continue;
      drawn.add(to);
      draw(t.id, l, to, l.level ?? (t.kind === "balancer" ? "off" : "ok"));
    }
  }
  const endpoints = endpointsOf(scene, find);
  for (const {service, pod, link} of endpoints)
    if ((endpoints.length <= fewEndpoints && !isMap) || view.selected === service || view.selected === pod)
      draw(service, link, pod, `endpoint ${link.level}`);
  fill(svg, lines);
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
  const ill = (t.links ?? []).filter((l) => l.level === "bad");
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
      element("small", {}, text),
    );
  });
  if (look.length > shownProblems) shown.push(element("span", {}, `and ${look.length - shownProblems} more`));
  if (view.lost && view.time === null)
    shown.unshift(element("span", {class: "unknown"}, `? unknown now: ${countKinds(scene.values()) || "everything"}`));
  else if (scene.size === 0) shown.push(element("span", {}, "○ nothing is here"));
  else if (look.length === 0) shown.push(element("span", {class: "ok"}, "● all is well"));
  fill(byID("attention"), shown);
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
  const parts = [
    element(
      "h2",
      {},
      element("span", {class: t.level, "aria-hidden": "true"}, shapes[t.level] + " "),
      `${t.kind} ${t.name}`,
    ),
    element("p", {}, t.state, t.reason ? ". " + t.reason : ""),
  ];
  ask(history.latest.get(t.id));
  const why = view.time === null ? view.why.get(t.id) : undefined;
  if (why) parts.push(...explanation(why));
  parts.push(...actions(t));
  parts.push(
    element(
      "dl",
      {},
      ...(t.zone ? [{name: "zone", value: t.zone}] : [])
        .concat(t.facts ?? [])
        .flatMap((f) => [element("dt", {}, f.name), element("dd", {}, f.value)]),
    ),
  );
  const pods = endpointsOf(scene, find).filter((e) => e.service === t.id);
  const links = [...(t.links ?? []), ...pods.map((e) => e.link)]
    .map((l) => ({...l, id: find(l.to)}))
    .filter((l, i, all) => l.id && all.findIndex((o) => o.id === l.id) === i);
  if (links.length)
    parts.push(
      element(
        "ul",
        {class: "links"},
        ...links.map((l) =>
          element(
            "li",
            {},
            element("button", {type: "button", onclick: () => select(l.id)}, l.id),
            " ",
            l.state ?? "",
            l.connections ? `, ${l.connections} connections` : "",
            l.bytesPerSecond ? `, ${formatBytes(l.bytesPerSecond)} a second` : "",
          ),
        ),
      ),
    );
  fill(byID("details"), parts);
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
  const key = JSON.stringify([t.id, acts]);
  if (view.actsKey !== key) {
    view.actsKey = key;
    view.actsElement = element("section", {}, element("h3", {}, "Do"), ...acts.map((a) => action(t, a)));
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
    element("button", {type: "button", "data-verb": a.verb, onclick: act}, a.verb),
    ...inputs,
    code,
    copyButton(() => code.textContent),
  );
}

function copyButton(text) {
  return element(
    "button",
    {type: "button", class: "copy", onclick: () => navigator.clipboard?.writeText(text())},
    "copy",
  );
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
  return [...new DOMParser().parseFromString(html ?? "", "text/html").body.childNodes];
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
  if (byID("cost").open) drawCost();
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
  const [first] = history.entries; // It tells when the story began to be counted.
  const zero = first ? first.at - first.seconds * 1000 : begin;
  const text = `${((now() - zero) / 1000).toFixed(1)} s, ${new Date(now()).toLocaleTimeString()}`;
  const end = recorded ? ", the end" : view.lost ? ", last known" : ", now";
  setText("clock", view.time === null ? text + end : text);
  byID("slider").setAttribute("aria-valuetext", text);
  setText("play", view.time === null ? "Pause" : view.playing ? "Pause" : "Play");
  document.body.classList.toggle("past", view.time !== null);
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
  if (batch.more) return; // Until all of it is there, it shows what was.
  const wasLost = view.lost;
  view.lost = null;
  const isStale = view.time === null && !isAsked(view.selected ? history.latest.get(view.selected) : whole);
  if (batch.scene?.length || batch.reset || batch.note || wasLost || isStale) redraw();
  if (batch.reset || byID("cost").open || batch.story?.some(isShown)) redrawStory();
  scheduleFrame(); // for the clock
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
byID("whole").addEventListener("click", () => select(""));
for (const id of ["search", "failed", "reads"])
  byID(id).addEventListener("input", redrawStory);
byID("filters").addEventListener("submit", (ev) => ev.preventDefault());
byID("cost").addEventListener("toggle", redrawStory);
byID("table").addEventListener("toggle", redraw);
new ResizeObserver(redraw).observe(byID("picture"));

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

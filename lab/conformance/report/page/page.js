"use strict";
const tests = [...document.querySelectorAll(".test")];
const get = (id) => document.getElementById(id);
const words = new Map();
const textOf = (t) => {
  if (!words.has(t)) words.set(t, t.textContent.toLowerCase());
  return words.get(t);
};
function filter() {
  const wanted = get("Search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const t of tests) {
    const away = get("Failed").checked && !t.matches(".failed, .tolerated") ||
      get("Profile").value && t.dataset.profile !== get("Profile").value ||
      !wanted.every((w) => textOf(t).includes(w));
    t.classList.toggle("away", away);
    if (!away) shown++;
  }
  get("Count").value = `${shown} of ${tests.length} tests`;
}
function unfold(open) {
  for (const t of tests) if (!t.matches(".away")) t.open = open;
}
// A link to a test unfolds it, whatever the filters say.
function follow() {
  const t = tests.find((t) => "#" + t.id === location.hash);
  if (!t) return;
  t.classList.remove("away");
  t.open = true;
  t.scrollIntoView();
}
for (const id of ["Failed", "Profile", "Search"]) get(id).addEventListener("input", filter);
for (const k of document.querySelectorAll(".Kind")) {
  k.addEventListener("input", () => document.body.classList.toggle("hide-" + k.value, !k.checked));
}
get("Unfold").addEventListener("click", () => unfold(true));
get("Fold").addEventListener("click", () => unfold(false));
addEventListener("hashchange", follow);
get("Filters").hidden = false;
filter();
follow();

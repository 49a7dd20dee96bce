// Copy buttons, and a list of what was done that this browser remembers. The lab
// keeps its own: `lab lesson list`.
"use strict";

for (const button of document.querySelectorAll(".copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code); // The reader copies it, then.
      button.textContent = "selected";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}

const key = (lesson) => "ccmlab-lesson-" + lesson;

function done(lesson) {
  try {
    return new Set(JSON.parse(localStorage.getItem(key(lesson)) || "[]"));
  } catch {
    return new Set(); // Where nothing can be kept, as in a private window.
  }
}

for (const box of document.querySelectorAll("input[data-task]")) {
  const lesson = box.closest("[data-lesson]").dataset.lesson;
  const after = box.closest(".task").nextElementSibling;
  const follow = () => { if (after?.matches("details.after")) after.open = box.checked; };
  box.checked = done(lesson).has(box.dataset.task);
  follow();
  box.addEventListener("change", () => {
    const tasks = done(lesson);
    box.checked ? tasks.add(box.dataset.task) : tasks.delete(box.dataset.task);
    try {
      localStorage.setItem(key(lesson), JSON.stringify([...tasks]));
    } catch { /* It is not remembered. */ }
    follow();
  });
}

// On paper, nothing can be opened.
addEventListener("beforeprint", () => {
  for (const after of document.querySelectorAll("details.after")) after.open = true;
});

for (const item of document.querySelectorAll(".lessons > li")) {
  const count = done(item.dataset.lesson).size;
  if (count > 0) {
    item.querySelector(".progress").textContent = count >= Number(item.dataset.tasks) ? "✓ done" : `${count} of ${item.dataset.tasks} done`;
  }
}

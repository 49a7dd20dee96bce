// The page as it is now, every other second.
"use strict";

async function refresh() {
  try {
    const answer = await fetch("./", { cache: "no-store" });
    const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    if (answer.ok && next) {
      document.querySelector("main").replaceChildren(...next.childNodes);
      document.title = "Classroom · CCM Lab";
    }
  } catch {
    document.title = "(not reached) Classroom · CCM Lab"; // The next one may be.
  }
  setTimeout(refresh, 2000);
}

// A seat's lab is opened large, below the table, which may fill the window.
document.addEventListener("click", (event) => {
  if (!event.target.closest("a[target=large]")) return;
  const frame = document.querySelector("iframe[name=large]");
  frame.hidden = false;
  frame.scrollIntoView();
});

setTimeout(refresh, 2000);

"use strict";
// Replaces the content of #live by that of the same address, while the tab is visible. All state is in the tab.
(() => {
  const EVERY_MS = 2000;
  const SHARE = 20; // a slow answer is asked for less often
  const notice = document.getElementById("notice");
  let timer = 0;
  let running = false;

  function localize(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      time.title = at.toISOString().replace("T", " ").replace("Z", " UTC");
      if ("local" in time.dataset) {
        const pad = (number) => String(number).padStart(2, "0");
        const day = [at.getFullYear(), pad(at.getMonth() + 1), pad(at.getDate())].join("-");
        time.textContent = `${day} ${[at.getHours(), at.getMinutes(), at.getSeconds()].map(pad).join(":")}`;
      }
    }
  }

  function offerToCopy(root) {
    if (!navigator.clipboard) return;
    for (const button of root.querySelectorAll("button[data-copy]")) {
      button.hidden = false;
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
        button.textContent = "Copied";
      });
    }
  }

  function prepare(root) {
    localize(root);
    offerToCopy(root);
  }

  // A person reads or uses it: selected text, or a button with the focus.
  function inUse(live) {
    const selection = document.getSelection();
    const selected = selection && !selection.isCollapsed && live.contains(selection.anchorNode);
    return selected || (document.activeElement instanceof HTMLButtonElement && live.contains(document.activeElement));
  }

  function replace(page) {
    const live = document.getElementById("live");
    const next = page.getElementById("live");
    if (!next) return;
    const focused = live.contains(document.activeElement) ? document.activeElement : null;
    const label = focused && focused.getAttribute("aria-label");
    const scrolled = [...live.querySelectorAll(".scroll")].map((one) => [one.getAttribute("aria-label"), one.scrollLeft]);
    prepare(next);
    live.replaceChildren(...next.childNodes);
    const regions = [...live.querySelectorAll(".scroll")];
    const region = (name) => regions.find((one) => one.getAttribute("aria-label") === name);
    for (const [name, left] of scrolled) if (region(name)) region(name).scrollLeft = left;
    const again = focused && (focused.id ? document.getElementById(focused.id) : label && region(label));
    if (again) again.focus({ preventScroll: true });
    document.title = page.title;
  }

  function say(text) {
    notice.textContent = text;
    notice.hidden = text === "";
    document.getElementById("live").classList.toggle("stale", text !== "");
  }

  async function refresh() {
    timer = 0;
    running = true;
    const begun = performance.now();
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(15000) });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (answer.status === 503) {
        const why = page.querySelector(".lead");
        say(`${page.querySelector("h1")?.textContent ?? "No answer"}. ${why?.textContent ?? ""} What is below is older.`);
      } else if (answer.status === 401) {
        location.reload();
        return;
      } else {
        if (!inUse(document.getElementById("live"))) replace(page);
        say("");
      }
    } catch {
      say("The coordinator's process does not answer. This page asks again by itself; what is below is older.");
    }
    running = false;
    schedule(Math.max(EVERY_MS, SHARE * (performance.now() - begun)));
  }

  function schedule(after) {
    if (!document.hidden && !timer && !running) timer = setTimeout(refresh, Math.min(after, 30000));
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      clearTimeout(timer);
      timer = 0;
    } else {
      schedule(0);
    }
  });
  prepare(document);
  if (!document.querySelector("form.sign-in")) schedule(EVERY_MS);
})();

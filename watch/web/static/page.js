"use strict";
// Keeps #live as the same address has it, while the tab is visible: by a stream, and where there is none by asking.
(() => {
  const EVERY_MS = 5000;
  const SILENT_MS = 40000; // a stream says something every 10 s, and ends after 25 s
  const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const notice = document.getElementById("notice");
  let stream = null;
  let heard = 0;
  let latest = null; // a page that is not shown yet
  let ahead = 0; // the server's clock
  let asked = performance.now();
  let timer = 0;
  let running = false;

  // As the server writes it.
  function duration(seconds) {
    if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
    const whole = Math.round(seconds);
    const index = UNITS.findIndex(([, size]) => whole >= size);
    const [unit, size] = UNITS[index];
    const [finer, part] = index < 2 ? UNITS[index + 1] : ["", size];
    const rest = Math.floor((whole % size) / part);
    return `${Math.floor(whole / size)} ${unit}` + (rest ? ` ${rest} ${finer}` : "");
  }

  function age(time) {
    const seconds = (Date.now() + ahead - Date.parse(time.dateTime)) / 1000;
    if (time.dataset.age === "until") return duration(Math.max(0, -seconds));
    if (time.dataset.age === "since") return duration(Math.max(0, seconds));
    return seconds < 1 ? "now" : `${duration(seconds)} ago`;
  }

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

  // `at`: when the server read what it shows, by its clock.
  function setClock(at) {
    if (!Number.isNaN(at)) ahead = at - Date.now();
  }

  function prepare(root) {
    const read = root.querySelector(".read time");
    if (read) setClock(Date.parse(read.dateTime));
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

  function show(text) {
    latest = new DOMParser().parseFromString(text, "text/html");
    showLatest();
  }

  function showLatest() {
    if (!latest || inUse(document.getElementById("live"))) return;
    replace(latest);
    latest = null;
  }

  function unchanged(at) {
    setClock(Date.parse(at));
    const read = document.querySelector("#live .read time");
    if (!read || latest) return;
    read.dateTime = at;
    localize(read.parentElement);
  }

  // The browser itself opens the next one when a stream has had its time.
  function watch() {
    if (document.hidden || stream) return;
    const opened = new EventSource(location.href);
    let open = false;
    stream = opened;
    heard = performance.now();
    const hear = (act) => (event) => {
      heard = performance.now();
      act(event.data);
      say("");
    };
    opened.addEventListener("open", () => (open = true));
    opened.addEventListener("message", hear(show));
    opened.addEventListener("read", hear(unchanged));
    opened.addEventListener("error", () => {
      if (open && opened.readyState === EventSource.CONNECTING) open = false;
      else lose();
    });
  }

  function close() {
    if (stream) stream.close();
    stream = null;
  }

  // Why there is no stream is said to who asks for the page.
  function lose() {
    close();
    schedule(asked + EVERY_MS - performance.now());
  }

  async function refresh() {
    timer = 0;
    running = true;
    asked = performance.now();
    let there = false;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(15000) });
      const text = await answer.text();
      if (answer.status === 401) {
        location.reload();
        return;
      }
      if (answer.status === 503) {
        const page = new DOMParser().parseFromString(text, "text/html");
        const why = page.querySelector(".lead");
        say(`${page.querySelector("h1")?.textContent ?? "No answer"}. ${why?.textContent ?? ""} What is below is older.`);
      } else {
        show(text);
        say("");
        there = answer.ok;
      }
    } catch {
      say("The coordinator's process does not answer. This page asks again by itself; what is below is older.");
    }
    running = false;
    if (there) watch();
    else schedule(EVERY_MS);
  }

  function schedule(after) {
    if (!document.hidden && !timer && !running) timer = setTimeout(refresh, Math.max(0, after));
  }

  function tick() {
    if (document.hidden) return;
    if (stream && performance.now() - heard > SILENT_MS) lose();
    showLatest();
    const live = document.getElementById("live");
    if (!inUse(live)) for (const time of live.querySelectorAll("time[data-age]")) time.textContent = age(time);
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
      clearTimeout(timer);
      timer = 0;
    } else watch();
  });
  prepare(document);
  if (!document.querySelector("form.sign-in")) {
    setInterval(tick, 1000);
    watch();
  }
})();

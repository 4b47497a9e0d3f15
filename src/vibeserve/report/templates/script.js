"use strict";
(() => {
  const each = (selector, use, root = document) => root.querySelectorAll(selector).forEach(use);

  // A mark's <title> is the tip for those without this script; with it, one tip of our own that shows at once.
  each("svg title", (title) => {
    const mark = title.parentNode;
    mark.setAttribute("data-tip", title.textContent);
    title.remove();
  });
  const tip = document.getElementById("tip");
  const hide = () => { tip.hidden = true; };
  const show = (target, x, y) => {
    tip.textContent = target.getAttribute("data-tip");
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, x - box.width / 2), innerWidth - box.width - 8);
    const above = y - box.height - 12;
    tip.style.left = left + "px";
    tip.style.top = (above > 8 ? above : y + 18) + "px";
  };
  const nearest = (event) => {
    const hit = event.target.closest("[data-tip]");
    if (hit) return hit;
    const chart = event.target.closest("svg.vs-chart");
    if (!chart) return null;
    let best = null, distance = 14;
    each(".m[data-tip]", (mark) => {
      const box = mark.getBoundingClientRect();
      const away = Math.hypot(box.x + box.width / 2 - event.clientX, box.y + box.height / 2 - event.clientY);
      if (away < distance) { best = mark; distance = away; }
    }, chart);
    return best;
  };
  document.addEventListener("pointermove", (event) => {
    const target = nearest(event);
    if (target) show(target, event.clientX, event.clientY); else hide();
  }, { passive: true });
  document.addEventListener("pointerdown", (event) => {
    const target = nearest(event);
    if (target) show(target, event.clientX, event.clientY); else hide();
  }, { passive: true });
  addEventListener("scroll", hide, { passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  const value = (row, column) => row.cells[column]?.dataset.v ?? row.cells[column]?.textContent ?? "";
  const compare = (a, b) => {
    if (a === "" || b === "") return a === b ? 0 : a === "" ? 1 : -1;
    const x = Number(a), y = Number(b);
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, undefined, { numeric: true }) : x - y;
  };
  each("table.sortable", (table) => {
    if (!table.tBodies[0] || table.tBodies[0].rows.length < 3) return;
    each("thead th", (head) => {
      const button = document.createElement("button");
      button.type = "button";
      while (head.firstChild) button.append(head.firstChild);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        each("th", (other) => other.removeAttribute("aria-sort"), table);
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = [...body.rows].sort((a, b) => {
          const x = value(a, head.cellIndex), y = value(b, head.cellIndex);
          const order = compare(x, y);
          return down && x !== "" && y !== "" ? -order : order;
        });
        body.append(...rows);
      });
    }, table);
  });

  each(".code pre:not(.diff)", (block) => {
    if (!navigator.clipboard) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    block.parentNode.append(button);
  });

  // A link to something inside a folded part opens it.
  const reveal = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();

  const links = new Map();
  each(".contents a", (link) => links.set(link.getAttribute("href").slice(1), link));
  if (matchMedia("(max-width: 40rem)").matches) each(".contents details", (fold) => { fold.open = false; });
  if (links.size && "IntersectionObserver" in window) {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting || !links.has(entry.target.id)) continue;
        links.forEach((link) => link.classList.remove("here"));
        links.get(entry.target.id).classList.add("here");
      }
    }, { rootMargin: "0px 0px -75% 0px" });
    each("main > section", (section) => seen.observe(section));
  }
})();

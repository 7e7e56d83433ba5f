"use strict";
document.documentElement.classList.add("scripted");

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const command = button.parentElement.querySelector("pre");
  const range = document.createRange();
  range.selectNodeContents(command);
  const selection = window.getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
  const copied = () => { button.textContent = "Copied"; };
  const otherwise = () => { if (document.execCommand("copy")) copied(); };
  if (navigator.clipboard) navigator.clipboard.writeText(command.textContent).then(copied, otherwise);
  else otherwise();
});

for (const input of document.querySelectorAll("input[data-filter]")) {
  const items = document.getElementById(input.dataset.filter).querySelectorAll("[data-name]");
  const shown = document.getElementById(input.dataset.filter + "-shown");
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const item of items) {
      item.hidden = !words.every((word) => item.dataset.name.toLowerCase().includes(word));
      if (!item.hidden) count++;
    }
    for (const group of document.getElementById(input.dataset.filter).querySelectorAll("details.line")) {
      group.hidden = !group.querySelector("[data-name]:not([hidden])");
      if (words.length && !group.hidden) group.open = true;
    }
    shown.textContent = words.length ? count + " of " + items.length : "";
  });
}

// A difference that lies beyond the edge is brought into view when its case opens.
const reveal = (details) => {
  for (const mark of details.querySelectorAll(".window thead .mark")) {
    const box = mark.closest(".wide");
    box.scrollLeft = Math.max(0, mark.offsetLeft + mark.offsetWidth / 2 - box.clientWidth / 2);
  }
};
document.addEventListener("toggle", (event) => { if (event.target.open) reveal(event.target); }, true);
document.querySelectorAll("details.card[open]").forEach(reveal);

const follow = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  if (target) target.scrollIntoView();
};
window.addEventListener("hashchange", follow);
follow();

"use strict";
// What a link leads to is unfolded, with what it stands in.
const follow = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  if (target) target.scrollIntoView();
};
window.addEventListener("hashchange", follow);
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (link && link.hash === location.hash) follow();
});
// The newest releases are the last columns: a narrow page begins with them.
for (const wide of document.querySelectorAll(".wide")) wide.scrollLeft = wide.scrollWidth;
follow();

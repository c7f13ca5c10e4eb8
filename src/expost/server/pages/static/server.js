"use strict";
// The pages work without this file. It shows the slider, and fetches the price while a form changes.
(() => {
  const form = document.querySelector("form[data-price]");
  if (!form) return;
  const panel = document.querySelector(".price");
  const slide = document.getElementById("slide");
  const error = document.getElementById("error");
  const ask = document.getElementById("ask");
  let timer = 0, latest = 0, asked = new AbortController();

  const place = () => {
    const low = Math.log(slide.dataset.low), high = Math.log(slide.dataset.high);
    const value = Number(error.value);
    if (value > 0) slide.value = Math.round((100 * (Math.log(value) - low)) / (high - low));
    slide.setAttribute("aria-valuetext", error.value + " " + unit());
  };
  const unit = () => {
    const chosen = document.getElementById("unit");
    return chosen.options[chosen.selectedIndex].text;
  };
  const refresh = async (structure) => {
    const mine = ++latest;
    const address = form.action + "?" + new URLSearchParams(new FormData(form));
    try {
      asked.abort(); // the server stops computing what nobody waits for
      asked = new AbortController();
      const answer = await fetch(address, { credentials: "same-origin", signal: asked.signal });
      if (mine !== latest) return;
      if (answer.redirected || !answer.ok) { window.location.assign(address); return; }
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (mine !== latest) return;
      document.getElementById("price").replaceWith(fresh.getElementById("price"));
      if (ask) ask.disabled = fresh.getElementById("ask").disabled;
      if (slide && structure) {
        for (const name of ["low", "high"]) slide.dataset[name] = fresh.getElementById("slide").dataset[name];
        // Moving the chosen option away lets its old list choose another one: set the choice again.
        const units = document.getElementById("unit"), offered = fresh.getElementById("unit"), chosen = offered.value;
        units.replaceChildren(...offered.children);
        units.value = chosen;
        place();
      }
      panel.removeAttribute("aria-busy");
      history.replaceState(null, "", address);
    } catch {
      if (mine === latest) failed();
    }
  };
  const failed = () => { // the button asks the server again, without this script
    panel.removeAttribute("aria-busy");
    form.querySelector("button").hidden = false;
  };
  const changed = (wait, structure) => {
    if (ask) ask.disabled = true;
    panel.setAttribute("aria-busy", "true");
    clearTimeout(timer);
    timer = setTimeout(() => refresh(structure), wait);
  };

  if (ask) form.querySelector("button").hidden = true; // the price follows the form by itself
  if (slide) {
    slide.closest(".slider").hidden = false;
    place();
    slide.addEventListener("input", () => {
      const low = Number(slide.dataset.low), high = Number(slide.dataset.high);
      const value = low * Math.pow(high / low, slide.value / 100);
      error.value = String(Number(value.toPrecision(2)));
      slide.setAttribute("aria-valuetext", error.value + " " + unit());
      changed(120, false);
    });
    // Another kind or unit has another scale: its usual error is a better start than the old number.
    form.addEventListener("change", (event) => {
      if (event.target.name === "kind" || event.target.name === "unit" || event.target.name === "column") {
        error.value = "";
        if (event.target.name === "kind") {
          document.getElementById("unit").value = ({ mean: "absolute", quantile: "rank" })[event.target.value] || "percent";
        }
        clearTimeout(timer);
        fill();
      }
    });
  }
  const fill = async () => {
    if (ask) ask.disabled = true;
    panel.setAttribute("aria-busy", "true");
    const address = form.action + "?" + new URLSearchParams(new FormData(form));
    try {
      const answer = await fetch(address, { credentials: "same-origin" });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const found = fresh.getElementById("error");
      if (found) error.value = found.value;
      refresh(true);
    } catch {
      failed();
    }
  };
  form.addEventListener("input", (event) => {
    if (event.target === slide || ["kind", "unit", "column"].includes(event.target.name)) return;
    if (event.target === error) place();
    changed(slide ? 300 : 900, false); // a plan of a search takes longer
  });
})();

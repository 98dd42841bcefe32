"use strict";
// What cards can do: show a blurred picture, copy a command.
(() => {
  document.documentElement.dataset.scripts = "on";
  for (const button of document.querySelectorAll(".reveal")) {
    button.addEventListener("click", () => {
      const isShown = button.parentElement.classList.toggle("shown");
      button.setAttribute("aria-pressed", String(isShown));
      button.textContent = isShown ? "Blur again" : "Show (NSFW score)";
    });
  }

  // Where the browser forbids the clipboard, the command is selected, so that a key copies it.
  document.addEventListener("click", async ({ target }) => {
    if (!(target instanceof HTMLButtonElement && target.classList.contains("copy"))) return;
    const command = target.previousElementSibling;
    const copied = await navigator.clipboard?.writeText(command.textContent).then(() => true, () => false);
    if (!copied) getSelection().selectAllChildren(command);
    target.textContent = copied ? "Copied" : "Selected: press Ctrl+C";
  });
})();

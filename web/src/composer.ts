// The box in which messages are written.

import { byId, h, icon, iconButton } from "./dom";

/** Larger images are scaled down: models use no more, and requests have a size limit. */
const MAX_PICTURE_SIDE = 1024;
const MAX_HEIGHT = 240;

export interface Draft {
  text: string;
  images: string[];
}

export class Composer {
  private readonly form = byId<HTMLFormElement>("composer");
  private readonly area = byId<HTMLTextAreaElement>("composer-text");
  private readonly button = byId<HTMLButtonElement>("send");
  private readonly attachments = byId("attachments");
  private images: string[] = [];
  private busy = false;
  private acceptsImages = false;

  constructor(
    private readonly events: { send(draft: Draft): boolean; stop(): void; imagesRejected(): void },
  ) {
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.busy) this.events.stop();
      else this.send();
    });
    this.area.addEventListener("input", () => this.resize());
    this.area.addEventListener("keydown", (event) => {
      // Enter also ends the composition of a character.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.busy) this.send();
    });
    this.area.addEventListener("paste", (event) => this.take(event, event.clipboardData));
    this.form.addEventListener("dragover", (event) => event.preventDefault());
    this.form.addEventListener("drop", (event) => this.take(event, event.dataTransfer));
    this.setBusy(false);
  }

  /** While an answer is generated, the button stops it. */
  setBusy(busy: boolean): void {
    this.busy = busy;
    const label = busy ? "Stop" : "Send";
    this.button.replaceChildren(icon(busy ? "stop" : "send"));
    this.button.setAttribute("aria-label", label);
    this.button.title = busy ? "Stop (Esc)" : "Send (Enter)";
    this.update();
  }

  /** Whether images can be attached. */
  setAcceptsImages(accepts: boolean): void {
    this.acceptsImages = accepts;
    byId("composer-left").replaceChildren(...(accepts ? [this.imageButton()] : []));
  }

  set(text: string): void {
    this.area.value = text;
    this.resize();
    this.area.focus();
  }

  focus(): void {
    // On a phone, the keyboard would cover the page.
    if (!matchMedia("(pointer: coarse)").matches) this.area.focus();
  }

  private send(): void {
    const text = this.area.value.trim();
    if (!text && this.images.length === 0) return;
    if (!this.events.send({ text, images: this.images })) return;
    this.images = [];
    this.area.value = "";
    this.showImages();
    this.resize();
  }

  private resize(): void {
    this.area.style.height = "auto";
    this.area.style.height = `${Math.min(this.area.scrollHeight, MAX_HEIGHT)}px`;
    this.update();
  }

  private update(): void {
    this.button.disabled = !this.busy && !this.area.value.trim() && this.images.length === 0;
  }

  private imageButton(): HTMLButtonElement {
    const input = h("input", { type: "file", accept: "image/*", multiple: true });
    input.addEventListener("change", () => void this.attach([...(input.files ?? [])]));
    return iconButton("image", "Attach an image", () => input.click());
  }

  private take(event: Event, data: DataTransfer | null): void {
    const images = [...(data?.files ?? [])].filter(({ type }) => type.startsWith("image/"));
    if (images.length === 0) return;
    event.preventDefault();
    if (this.acceptsImages) void this.attach(images);
    else this.events.imagesRejected();
  }

  private async attach(files: File[]): Promise<void> {
    for (const file of files) this.images.push(await scaled(file));
    this.showImages();
    this.update();
  }

  private showImages(): void {
    this.attachments.hidden = this.images.length === 0;
    this.attachments.replaceChildren(
      ...this.images.map((src, index) => {
        const remove = () => {
          this.images.splice(index, 1);
          this.showImages();
          this.update();
        };
        return h("span", {}, h("img", { src, alt: `Image ${index + 1}` }), iconButton("close", `Remove image ${index + 1}`, remove));
      }),
    );
  }
}

/** An image as a data: URL of limited size. */
async function scaled(file: File): Promise<string> {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, MAX_PICTURE_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = h("canvas", { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
  canvas.getContext("2d")!.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.9);
}

// Follows the end of a growing text until the user scrolls up.

/** Distance from the end, in pixels, that still counts as being there. */
const NEAR = 48;

export class Follower {
  private follows = true;
  private top = 0;

  constructor(
    private readonly box: HTMLElement,
    private readonly onChange: (atEnd: boolean) => void,
  ) {
    box.addEventListener("scroll", () => {
      // Growing content does not move the top; only a user moves it up.
      if (box.scrollTop < this.top - 1) this.set(this.isNear());
      else if (this.isNear()) this.set(true);
      this.top = box.scrollTop;
    });
  }

  /** To be called after the content has grown. */
  contentChanged(): void {
    if (this.follows) this.box.scrollTop = this.box.scrollHeight;
    else this.onChange(this.isNear());
    this.top = this.box.scrollTop;
  }

  toEnd(): void {
    this.set(true);
    this.contentChanged();
  }

  private isNear(): boolean {
    return this.box.scrollHeight - this.box.clientHeight - this.box.scrollTop < NEAR;
  }

  private set(follows: boolean): void {
    this.follows = follows;
    this.onChange(follows);
  }
}

"use strict";
// The whole run at a glance, above a timeline that is larger than its window.

class Overview {
  constructor(model, canvas) {
    Object.assign(this, { model, canvas, picture: null });
  }
  paint(palette, width, height) {
    const { S, R, cells } = this.model;
    const picture = element("canvas");
    picture.width = S;
    picture.height = R;
    const image = picture.getContext("2d").createImageData(S, R);
    const pixels = new Uint32Array(image.data.buffer);
    const colour = (value) => {
      const [r, g, b] = [1, 3, 5].map((i) => parseInt(value.slice(i, i + 2), 16));
      return (255 << 24) | (b << 16) | (g << 8) | r;
    };
    const [wait, alarm] = [colour(palette.wait), colour(palette.alarm)];
    for (let r = 0; r < R; r++) {
      const own = colour(palette.owner(r));
      for (let i = r * S; i < (r + 1) * S; i++) {
        const kind = cells[i] & KIND_BITS;
        if (kind) pixels[i] = kind === KIND.waiting ? wait : kind === KIND.preempted ? alarm : own;
      }
    }
    picture.getContext("2d").putImageData(image, 0, 0);
    this.picture = element("canvas");
    prepare(this.picture, width, height, palette).drawImage(picture, 0, 0, width, height);
  }
  draw(state, palette, timeline) {
    if (this.canvas.hidden) return;
    const { S, R } = this.model;
    const { scroller } = timeline;
    const [width, height] = [scroller.clientWidth, 44];
    if (!this.picture) this.paint(palette, width, height);
    const c = prepare(this.canvas, width, height, palette);
    c.drawImage(this.picture, 0, 0, width, height);
    const seen = (scroller.clientWidth - timeline.left) / timeline.cell;
    c.strokeStyle = palette.faint;
    c.strokeRect(
      (width * scroller.scrollLeft) / timeline.cell / S + 0.5,
      (height * scroller.scrollTop) / timeline.rowHeight / R + 0.5,
      Math.min(width - 1, (width * seen) / S),
      Math.min(height - 1, (height * (scroller.clientHeight - TOP)) / timeline.rowHeight / R));
    c.fillStyle = palette.cursor;
    c.fillRect((width * (state.step + 0.5)) / S - 1, 0, 2, height);
  }
}

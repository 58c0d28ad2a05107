/* Browsers refuse workers in pages that are opened as files. There, a hidden frame takes the place of the worker that
   searches. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.ready = new Promise((resolve) => {
        frame.addEventListener("load", () => {
          const inner = frame.contentWindow;
          // In a worker, `postMessage` goes to the page.
          inner.postMessage = (data) => this.deliver(this, data);
          const script = inner.document.createElement("script");
          script.src = new URL(url, location).href;
          script.addEventListener("load", () => resolve(inner));
          inner.document.body.append(script);
        }, { once: true });
      });
      document.documentElement.append(frame);
    }

    postMessage(data) {
      this.ready.then((inner) => this.deliver(inner, data));
    }

    deliver(target, data) {
      target.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}

// Browsers refuse workers to pages opened from disk, and the search is one.
// On such pages it runs in a hidden frame instead.
if (location.protocol === 'file:') {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement('iframe');
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      const page = frame.contentDocument;
      page.open();
      this.scope.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent('message', { data }));
      this.ready = new Promise((resolve) => (this.scope.ready = resolve));
      page.write(`<script src="${url}" onload="ready()"><\/script>`);
      page.close();
    }
    async postMessage(data) {
      await this.ready;
      this.scope.dispatchEvent(new MessageEvent('message', { data }));
    }
    terminate() {}
  };
}

/* What stands beside the pictures: figures, search, colours, classes of links. Texts only: no HTML. */

const MOST_FOUND = 12;
const MOST_CLASSES = 40;

class Panel {
  constructor(data, app) {
    this.data = data;
    this.app = app;
    fill(byId("facts"), data.facts);
    this.listClasses();
    const search = byId("search");
    search.addEventListener("input", () => this.search(search.value));
    search.addEventListener("keydown", (event) => {
      const first = byId("found").querySelector("button");
      if (event.key === "Enter" && first) first.click();
      if (event.key === "ArrowDown" && first) first.focus();
      if (event.key === "Escape") { search.value = ""; this.search(""); byId("fabric").focus(); }
      event.stopPropagation();
    });
    byId("found").addEventListener("keydown", (event) => {
      const next = { ArrowDown: "nextSibling", ArrowUp: "previousSibling" }[event.key];
      const item = next && document.activeElement.parentElement[next];
      if (next) (item ? item.firstChild : search).focus();
      if (next) { event.preventDefault(); event.stopPropagation(); }
    });
  }

  /* Names and figures of a thing: [[name, value], ...]. */
  describe(thing) {
    return thing ? this[thing.kind](thing.index) : [];
  }

  pair(k) {
    return this.app.fabric.linksIn(k).flatMap((e) => this.describeLink(e));
  }

  describeFigures(index) {
    const [bandwidth, load, percent] = this.data.classes[index];
    const rows = [["bandwidth", `${exact(bandwidth)} GB/s`]];
    if (load !== undefined) rows.push(["load", `${exact(load)} of the data`], ["busy", `${exact(percent)} % of the time`]);
    return rows;
  }

  describeLink(e) {
    const { nodes, tail, head, linkClass, linkBytes, linkUse } = this.data;
    const rows = [["link", `${nodes[tail[e]]} -> ${nodes[head[e]]}`], ...this.describeFigures(linkClass[e])];
    if (linkBytes) {
      rows.push(["simulated", `${showBytes(linkBytes[e])}, busy ${round(linkUse[e], 4)} % of the time`]);
    }
    return rows;
  }

  node(v) {
    const { nodes, gpu, rank, tail, head, twin } = this.data;
    const { state, fabric } = this.app;
    const links = [...this.app.linksOf({ kind: "node", index: v })];
    const rate = (ends) => round(links.reduce((sum, e) => sum + (ends[e] === v) * fabric.rates[e], 0), 6);
    const kind = gpu[v] ? (rank[v] < 0 ? "GPU, no rank" : `GPU, rank ${rank[v]}`) : "switch";
    const rows = [["node", nodes[v]], ["is", kind], ["links", `${links.length}: ${rate(tail)} GB/s out, ${rate(head)} GB/s in`]];
    if (state.folded && fabric.alike[twin[v]] > 1) rows.push(["alike", `${fabric.alike[twin[v]] - 1} more`]);
    return rows;
  }

  bar(k) {
    const { run, data } = this.app;
    const row = run.row[k];
    const rows = [
      ["rank", `${data.rowRank[row]}, ${run.names[row]}`],
      ["does", run.phases[data.phase[k]] + (row < run.blocks ? `: ${run.words[data.what[k]]}, step ${data.step[k]}` : "")],
      ["from", `${showTime(run.start[k])} to ${showTime(run.end[k])}`],
    ];
    const links = run.linksOf(k);
    if (links.length) {
      const ends = [data.tail[links[0]], data.head[links[links.length - 1]]];
      const amount = run.amounts[data.amount[k]];
      const rate = amount / (run.end[k] - run.start[k] || 1) / 1000;
      rows.push(["moves", `${showBytes(amount)}, ${round(rate, 4)} GB/s`]);
      rows.push(["over", `${data.nodes[ends[0]]} -> ${data.nodes[ends[1]]}, ${plural(links.length, "link")}`]);
    }
    return rows;
  }

  class(index) {
    const count = this.app.linksOf({ kind: "class", index }).size;
    return [["links", `${count} of the same figures`], ...this.describeFigures(index)];
  }

  show(thing) {
    const rows = this.describe(thing);
    const cut = this.app.state.cut;
    if (!rows.length && cut >= 0) {
      rows.push(["limit", this.data.limit], [this.data.cuts[cut].name, this.data.cuts[cut].text]);
    }
    fill(byId("details"), rows.length ? rows : [["", `nothing: point at a link or a node${this.app.run ? ", or a bar" : ""}`]]);
  }

  /* All words must be in the name: "gpu3 fabric" finds the link between the two. */
  search(text) {
    const words = text.toLowerCase().split(/[\s,]+|->/).filter(Boolean);
    const list = byId("found");
    list.replaceChildren();
    if (!words.length) return;
    const offer = (name, thing) => {
      append(append(list, "li"), "button", name, () => this.app.select(thing, true));
      return list.children.length >= MOST_FOUND;
    };
    const rank = /^(rank\s*)?(\d+)$/.exec(text.trim().toLowerCase());
    const ranked = rank ? this.data.rank.indexOf(Number(rank[2])) : -1;
    if (ranked >= 0) offer(`rank ${rank[2]}: ${this.data.nodes[ranked]}`, { kind: "node", index: ranked });
    const matches = (name, word) => name.toLowerCase().includes(word);
    if (words.length === 1) {
      const whole = (v) => this.data.nodes[v].toLowerCase() === words[0] || this.data.nodes[v].toLowerCase().endsWith(`/${words[0]}`);
      const found = [...this.data.nodes.keys()].filter((v) => matches(this.data.nodes[v], words[0]));
      found.sort((a, b) => whole(b) - whole(a) || a - b);
      for (const v of found) if (offer(this.data.nodes[v], { kind: "node", index: v })) return;
    }
    const { pairs } = this.app.fabric;
    for (let k = 0; k < pairs.length; k++) {
      const [a, b] = [this.data.nodes[pairs[k][0]], this.data.nodes[pairs[k][1]]];
      const [one, two = one] = words;
      const fits = (matches(a, one) && matches(b, two)) || (matches(b, one) && matches(a, two));
      if (fits && words.length > 1 && offer(`${a} - ${b}`, { kind: "pair", index: k })) return;
    }
    if (!list.children.length) append(list, "li", "nothing is called so");
  }

  /* A row for all links of the same figures. */
  listClasses() {
    const counts = new Uint32Array(this.data.classes.length);
    for (const c of this.data.linkClass) counts[c]++;
    const order = [...counts.keys()].sort((a, b) => this.busy(b) - this.busy(a) || counts[b] - counts[a]);
    const body = byId("classes").tBodies[0];
    const heads = byId("classes").tHead.rows[0];
    while (heads.cells.length > this.data.classes[0].length + 1) heads.deleteCell(-1);
    for (const index of order.slice(0, MOST_CLASSES)) {
      const [bandwidth, load, percent] = this.data.classes[index];
      const row = body.insertRow();
      append(row.insertCell(), "button", plural(counts[index], "link"), () => this.app.select({ kind: "class", index }));
      for (const [text, unit] of [[bandwidth, ""], [load, ""], [percent, " %"]]) {
        if (text !== undefined) row.insertCell().textContent = round(toNumber(text), 4) + unit;
      }
    }
    if (order.length > MOST_CLASSES) {
      body.insertRow().insertCell().textContent = `and ${order.length - MOST_CLASSES} more`;
    }
  }

  busy(index) {
    const percent = this.data.classes[index][2];
    return percent === undefined ? 0 : toNumber(percent);
  }

  /* Colours that are in use now. */
  legend() {
    const { palette, state, data, theme, run, fabric } = this.app;
    const scale = (colours) => `linear-gradient(90deg,${colours.join()})`;
    const rows = [["GPU and its rank", palette.gpu]];
    if (data.gpu.includes(0)) rows.push(["switch", palette.switch]);
    if (state.allTrees) rows.push(["a colour for each tree", scale([0, 1, 2, 3].map((k) => treeColour(k, theme === "dark"))), true]);
    else if (state.tree >= 0) {
      const most = Math.min(this.app.trees.height(state.tree), palette.hops.length);
      for (let hop = 1; hop <= most; hop++) rows.push([`hop ${hop}`, palette.hops[hop - 1]]);
    } else if (state.heat && fabric.heated) {
      const what = data.classes[0].length > 2 ? "of the time busy" : "of the simulated time busy";
      rows.push([`0 to 100 % ${what}`, scale(palette.heat), true]);
    } else if (fabric.kindNames.length > 1) fabric.kindNames.forEach((name, k) => rows.push([name, palette.kinds[k], true]));
    if (state.cut >= 0) rows.push(["one side of the limit, and its links", palette.cut, true]);
    if (run) rows.push(...run.legend(state.colour, palette, fabric.kindNames));
    if (this.app.selectedWays || (run && run.trees && state.tree >= 0)) rows.push(["other bars", palette.other]);
    rows.push(["selected", "transparent", false, true]);
    const list = byId("legend");
    list.replaceChildren();
    for (const [name, colour, wide, ring] of rows) {
      const item = append(list, "li");
      append(item, "i").style.background = colour;
      item.className = wide ? "wide" : ring ? "ring" : "";
      item.append(name);
    }
  }
}

function byId(name) {
  return document.getElementById(name);
}

/* A new element at the end of another one; `act`: what a click on it does. */
function append(parent, tag, text = "", act = null) {
  const element = document.createElement(tag);
  element.textContent = text;
  element.addEventListener("click", act);
  parent.append(element);
  return element;
}

function fill(list, rows) {
  list.replaceChildren();
  for (const [name, value] of rows) {
    append(list, "dt", name);
    append(list, "dd", value);
  }
}

// Handles clicks, dropped files and chosen files. `element` has the listeners because each answer replaces its content.
element.addEventListener('click', event => {
  const button = event.target.closest('[data-pick], [data-page], [data-sort]');
  if (!button || !element.contains(button)) return;
  const {pick, page, sort} = button.dataset;
  if (pick !== undefined) trigger('click', {pick});
  if (page !== undefined) trigger('select', {page});
  if (sort !== undefined) sorted(button.closest('th'), sort);
});

function sorted(head, column) {
  const body = head.closest('table').tBodies[0], up = head.getAttribute('aria-sort') !== 'ascending';
  for (const other of head.parentNode.children) other.setAttribute('aria-sort', 'none');
  head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
  const value = row => row.cells[column].textContent.trim();
  const number = text => parseFloat(text.replaceAll(/[,<]/g, ''));
  const order = (a, b) => {
    const [x, y] = [value(a), value(b)], [m, n] = [number(x), number(y)];
    const [xMissing, yMissing] = [x === '' || x === '–', y === '' || y === '–'];
    if (xMissing || yMissing) return xMissing - yMissing;  // missing values stay at the end
    return (up ? 1 : -1) * (isNaN(m) || isNaN(n) ? x.localeCompare(y) : m - n);
  };
  body.append(...[...body.rows].sort(order));
}

function send(zone, file) {
  const status = zone.querySelector('.mcl-said'), limit = Number(zone.dataset.limit);
  const huge = file.size > limit;
  zone.classList.toggle('bad', huge);
  status.textContent = huge
    ? `${file.name} is too large: its size is ${(file.size / 1e6).toFixed(1)} MB, but the limit is ${limit / 1e6} MB.`
    : file.name;
  if (huge) return;
  const reader = new FileReader();
  reader.onload = () => trigger('upload', {name: file.name, data: reader.result.split(',')[1] ?? ''});
  reader.onerror = () => { status.textContent = `${file.name} cannot be read.`; };
  reader.readAsDataURL(file);
}

element.addEventListener('change', event => {
  if (event.target.type !== 'file' || !event.target.files.length) return;
  send(event.target.closest('.mcl-drop'), event.target.files[0]);
  event.target.value = '';  // allows choosing the same file again
});
for (const kind of ['dragover', 'dragleave', 'drop']) {
  element.addEventListener(kind, event => {
    const zone = event.target.closest('.mcl-drop');
    if (!zone) return;
    event.preventDefault();
    zone.classList.toggle('over', kind === 'dragover');
    if (kind === 'drop' && event.dataTransfer.files.length) send(zone, event.dataTransfer.files[0]);
  });
}

// Handles clicks, dropped files and chosen files. `element` has the listeners because each answer replaces its content.
element.addEventListener('click', event => {
  const button = event.target.closest('[data-pick], [data-page], [data-sort], [data-full]');
  if (!button || !element.contains(button)) return;
  const {pick, page, sort, full} = button.dataset;
  for (const field of element.querySelectorAll('.mcl-inputs input')) field.value = field.defaultValue;
  if (pick !== undefined) trigger('click', {pick});
  if (page !== undefined) trigger('select', {page});
  if (sort !== undefined) sorted(button.closest('th'));
  if (full !== undefined) enlarge(button.querySelector('img'));
});

// Shows an image at its own size, until it is clicked or Escape is pressed.
function enlarge(image) {
  const dialog = document.body.appendChild(document.createElement('dialog')), copy = image.cloneNode();
  dialog.className = 'mcl-dialog';
  dialog.append(copy);
  copy.loading = 'eager';
  dialog.addEventListener('click', () => dialog.close());
  dialog.addEventListener('close', () => dialog.remove());
  dialog.showModal();
}

// Shows only the classes whose names contain the text of the filter.
element.addEventListener('input', event => {
  if (!event.target.classList.contains('mcl-filter')) return;
  const text = event.target.value.trim().toLowerCase();
  for (const part of element.querySelectorAll('[data-class]')) part.hidden = !part.dataset.class.includes(text);
});

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

// Sends all input values of a table when one of them was edited.
element.addEventListener('change', event => {
  const fields = event.target.closest('.mcl-inputs')?.querySelectorAll('input');
  if (fields) trigger('input', {values: [...fields].map(field => field.value).join()});
});

// Keeps the number and the slider of the test example equal, and sends the number that was chosen last, once keys rest.
let chosen;
for (const kind of ['input', 'change']) {
  element.addEventListener(kind, event => {
    const fields = event.target.closest('.mcl-number')?.querySelectorAll('input'), done = kind === 'change';
    let {value, max} = event.target;
    if (!fields) return;
    if (done) value = Math.min(Math.max(Math.round(value), 1), max);
    for (const field of fields) if (done || field !== event.target) field.value = value;
    clearTimeout(chosen);
    if (done) chosen = setTimeout(() => trigger('click', {pick: value - 1}), 150);
  });
}

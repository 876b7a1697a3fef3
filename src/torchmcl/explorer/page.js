// Of a piece of HTML: a click anywhere in it is that of the button around it, however often it was replaced.
element.addEventListener('click', event => {
  const button = event.target.closest('[data-pick], [data-page], [data-sort]');
  if (!button || !element.contains(button)) return;
  const {pick, page, sort} = button.dataset;
  if (pick !== undefined) trigger('click', {pick});
  if (page !== undefined) trigger('select', {page});
  if (sort !== undefined) {
    const head = button.closest('th'), body = button.closest('table').tBodies[0];
    const up = head.getAttribute('aria-sort') !== 'ascending';
    for (const other of head.parentNode.children) other.setAttribute('aria-sort', 'none');
    head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    const value = row => row.cells[sort].textContent.trim();
    const number = text => parseFloat(text.replaceAll(',', ''));
    const order = (a, b) => {
      const [x, y] = [value(a), value(b)], [m, n] = [number(x), number(y)];
      const [no, nor] = [x === '' || x === '–', y === '' || y === '–'];
      if (no || nor) return no - nor;  // what is missing stays below
      return (up ? 1 : -1) * (isNaN(m) || isNaN(n) ? x.localeCompare(y) : m - n);
    };
    body.append(...[...body.rows].sort(order));
  }
});

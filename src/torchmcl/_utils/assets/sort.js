// Sorts the rows of a table by the column of a heading (th); the next call reverses the order.
function sorted(head) {
  const body = head.closest('table').tBodies[0], up = head.getAttribute('aria-sort') !== 'ascending';
  for (const other of head.parentNode.children) other.setAttribute('aria-sort', 'none');
  head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
  const order = compare(up);
  body.append(...[...body.rows].sort((a, b) => order(a.cells[head.cellIndex], b.cells[head.cellIndex])));
}

// Returns a function that compares two cells as numbers or, if one is not a number, as text.
function compare(up) {
  const text = cell => cell.textContent.trim();
  const number = cell => parseFloat(text(cell).replaceAll(/[,<]/g, ''));
  return (a, b) => {
    const [x, y] = [text(a), text(b)], [m, n] = [number(a), number(b)];
    const [xMissing, yMissing] = [x === '' || x === '–', y === '' || y === '–'];
    if (xMissing || yMissing) return xMissing - yMissing;  // missing values stay at the end
    return (up ? 1 : -1) * (isNaN(m) || isNaN(n) ? x.localeCompare(y) : m - n);
  };
}

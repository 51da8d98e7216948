"""Pages of runs: what is drawn (`charts`), as JSON for the page's script (`payload`), as PNG (`figure`), and the texts around it (`view`, `render`)."""

// Sphinx's own scores; but pages for users come before decisions and measurements.
var Scorer = {
  score: ([page, , , , score]) => score - (/^(decisions|benchmarks)\//.test(page) ? 12 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

// Sphinx's own scores; but pages for users come before decisions, laboratory notes and measurements.
var Scorer = {
  score: ([page, , , , score]) => score - (/^(decisions|lab|benchmarks)\//.test(page) ? 12 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

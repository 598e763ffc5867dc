// Texts to try a new service with, and questions that they answer. Five documents of the demo's
// corpus, because that is what the small demo model was trained to read.

export const COLLECTION = "samples";

export const DOCUMENTS = [
  {
    doc_id: "sample-quentin",
    title: "Quentin Bruvik",
    text: "Quentin Bruvik wears a coat that is purple. The hobby of Quentin Bruvik is sailing. Quentin Bruvik speaks Polish. Every morning Quentin Bruvik goes to work at the prison. Bruvik keeps a goat as a pet. In the evening Quentin Bruvik plays the violin.",
  },
  {
    doc_id: "sample-nora",
    title: "Nora Varand",
    text: "Nora Varand has learned to speak Italian. The favourite food of Nora Varand is salad. The hobby of Nora Varand is climbing. Nora Varand works at the hospital. Nora Varand wears a coat that is yellow.",
  },
  {
    doc_id: "sample-town",
    title: "Saint Zelmund",
    text: "On the gate of Saint Zelmund there is a carved eagle. The first houses of Saint Zelmund were built in 1924. Saint Zelmund holds its festival in April. In the park of Saint Zelmund stands a tall oak. The market of Saint Zelmund is held on Monday. Traders come to Saint Zelmund to buy olives.",
  },
  {
    doc_id: "sample-ship",
    title: "The Brave Bruand",
    text: "On board the Brave Bruand the orders are given by Igor. The Brave Bruand returns every winter to Kyoto. The figure on the bow of the Brave Bruand is a tiger. The cargo of the Bruand is paper. Sailors painted the hull of the Bruand in grey.",
  },
  {
    doc_id: "sample-firm",
    title: "Velulf Group",
    text: "The owners of Velulf Group keep a tame stork. Velulf Group pays its workers on Friday. People all over the country buy from Velulf Group their chairs. Velulf was started by a merchant called Albert. Velulf Group closes for a holiday in June.",
  },
];

export const QUESTIONS = [
  "Which animal does Quentin Bruvik keep?",
  "Which tree grows in Saint Zelmund?",
  "Where does the Brave Bruand return every winter?",
  "Who started Velulf Group?",
];

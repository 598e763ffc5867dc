// Texts to try a new service with, and questions that they answer. Written for this page, in the
// plain sentences that even the small demo model understands.

export const COLLECTION = "samples";

export const DOCUMENTS = [
  {
    doc_id: "sample-town",
    title: "Port Calder",
    text: "Port Calder lies on the river Danube. The symbol of Port Calder is the eagle. People come to Port Calder for its cheese. The mayor of Port Calder is Greta. Port Calder was founded in 1870.",
  },
  {
    doc_id: "sample-firm",
    title: "Harlow Works",
    text: "Harlow Works makes bicycles. The head office of Harlow Works is in Vienna. Harlow Works was started by a merchant called Tomas. Harlow Works pays its workers on Friday. The logo of Harlow Works is a star.",
  },
  {
    doc_id: "sample-person",
    title: "Ines Morrow",
    text: "Ines Morrow keeps a goat as a pet. Ines Morrow wears a coat that is purple. Ines Morrow works at the bank. The hobby of Ines Morrow is sailing. In the evening Ines Morrow plays the violin.",
  },
  {
    doc_id: "sample-ship",
    title: "The Swallow",
    text: "The Swallow carries timber. The home port of the Swallow is Lisbon. The captain of the Swallow is Oskar. The Swallow was built in 1888.",
  },
];

export const QUESTIONS = [
  "Which animal does Ines Morrow keep?",
  "Where is the head office of Harlow Works?",
  "What is the symbol of Port Calder?",
  "Which colour does Ines Morrow wear?",
];

"""What the retriever's models do without an answer: passages, reranking, embeddings."""

"""What is sent and when: documents, questions, workloads, arrival times, routes."""

"""Files to text: Markdown in a thread, HTML and PDF in a process with limits."""

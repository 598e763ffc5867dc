"""Files to text: Markdown, HTML and PDF are parsed in a process with limits."""

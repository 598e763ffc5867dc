"""DOCX, PPTX, XLSX and EPUB, which are archives of XML."""

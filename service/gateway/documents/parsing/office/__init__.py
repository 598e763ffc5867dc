"""DOCX, PPTX and XLSX, which are archives of XML."""

"""The quickstart: three small trainings on real text, measured, scored and reported."""
